"""The Hard Concrete distribution of a gate (Sec. 6.1; Louizos, Welling & Kingma 2018).

A binary Concrete variable on (0, 1) is stretched to (low, high) and cut back to [0, 1], so that a
gate is exactly 0 or exactly 1 with probabilities that have a closed form, and yet a sample is a
differentiable function of the gate's logit. All functions work element by element on tensors of
any shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HardConcrete:
    """The family; its one parameter `phi` (Sec. 6.1) is the logit that every function takes.

    `low` and `high` are Louizos et al.'s gamma and zeta, `temperature` their beta.
    """

    temperature: float = 0.33
    low: float = -0.1
    high: float = 1.1

    def sample(self, logits: Tensor, uniform: Tensor) -> Tensor:
        """Gates in [0, 1] from noise that is uniform on (0, 1) (Louizos et al., eq. 10 and 11).

        The noise does not depend on the logits (the reparameterisation trick), so gradients pass
        from the gates to the logits wherever a gate is neither 0 nor 1.
        """
        concrete = torch.sigmoid((torch.logit(uniform) + logits) / self.temperature)
        return self._rectify(concrete)

    def zero_probability(self, logits: Tensor) -> Tensor:
        """`P(g = 0)`."""
        return torch.sigmoid(self._shift(-self.low / self.high) - logits)

    def open_probability(self, logits: Tensor) -> Tensor:
        """`P(g != 0)`, the summand of the penalty `L_C` (Sec. 6.1; Louizos et al., eq. 12)."""
        return torch.sigmoid(logits - self._shift(-self.low / self.high))

    def one_probability(self, logits: Tensor) -> Tensor:
        """`P(g = 1)`."""
        return torch.sigmoid(logits - self._shift((1 - self.low) / (self.high - 1)))

    def density(self, logits: Tensor, gates: Tensor) -> Tensor:
        """The density at values strictly between 0 and 1 (Fig. 6 of the paper).

        With `P(s <= x) = sigmoid(temperature * logit(x) - phi)` for the Concrete variable `s`, and
        `g = s * (high - low) + low`.
        """
        width = self.high - self.low
        concrete = (gates - self.low) / width
        below = torch.sigmoid(self.temperature * torch.logit(concrete) - logits)
        slope = self.temperature / (concrete * (1 - concrete))
        return below * (1 - below) * slope / width

    def typical(self, logits: Tensor) -> Tensor:
        """The gate without noise that Louizos et al. (eq. 13) test with, before binarisation."""
        return self._rectify(torch.sigmoid(logits))

    def is_open(self, logits: Tensor) -> Tensor:
        """The gate at test time: open where `P(g = 1) > P(g = 0)` (Sec. 6.1, footnote)."""
        return self.one_probability(logits) > self.zero_probability(logits)

    def _rectify(self, concrete: Tensor) -> Tensor:
        """Stretch (0, 1) to (low, high), then collapse what is outside [0, 1] to its ends."""
        return (concrete * (self.high - self.low) + self.low).clamp(0, 1)

    def _shift(self, odds: float) -> float:
        """The logit at which a Concrete variable with these odds has probability one half."""
        return self.temperature * math.log(odds)
