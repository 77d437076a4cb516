"""Learned gates: one Hard Concrete variable per head, and a price for each open one (Sec. 6.1).

The Hard Concrete distribution (Louizos, Welling & Kingma 2018): a binary Concrete variable on
(0, 1) is stretched to (low, high) and cut back to [0, 1], so that a gate is exactly 0 or exactly 1
with probabilities that have a closed form, and yet a sample is a differentiable function of the
gate's logit. Its functions work element by element on tensors of any shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headcount.heads import Head
from headcount.pruning.selection import Request, Selection


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


DECIDED = 0.5
"""A gate that is neither 0 nor 1 with at least this probability is undecided."""


class HardConcreteGates(Selection):
    """Gates that are drawn once per update and pay `weight * sum of P(g != 0)`.

    Where whole blocks have gates too, a head is there if both gates are open, its own and that of
    its block, and it pays for that probability alone: it costs nothing in a block that has closed.

    All begin at the logit `start`, nearly open, so that training goes on from the baseline. The
    penalty rises to `weight` over the first `warmup` updates: at full price from the start, heads
    would close before the loss shows which of them matter. The choice has settled when no gate is
    undecided and none has changed sides for `patience` updates.
    """

    relaxed = True
    too_few = "This pruning will hardly remove anything"

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        *,
        weight: float,
        warmup: int,
        patience: int,
        start: float,
        distribution: HardConcrete | None = None,
    ) -> None:
        super().__init__(heads, device)
        self.weight, self.warmup, self.patience = weight, warmup, patience
        self.distribution = distribution or HardConcrete()
        self.logits = nn.Parameter(torch.full((len(self.heads),), start, device=device))
        self._update = 0
        self._changed = 0  # the last update at which a gate changed sides
        self._sides = self.sides()
        self._noise = torch.full((len(self.heads),), 0.5, device=device)

    @classmethod
    def of(cls, request: Request) -> HardConcreteGates:
        """The gates of a pruning with a penalty."""
        settings = request.settings
        return cls(
            request.heads,
            request.device,
            weight=settings.penalty or 0.0,
            warmup=settings.warmup or 0,
            # A model that is trained from scratch needs all of its updates.
            patience=request.updates if settings.from_scratch else settings.patience,
            start=settings.start,
        )

    def parameters(self) -> list[nn.Parameter]:
        """The logits of the gates."""
        return [self.logits]

    def begin(self, update: int) -> None:
        """Draw the noise of this update; "we resample gate values for each batch" (Sec. 6.1)."""
        sides = self.sides()
        if not torch.equal(sides, self._sides):
            self._sides, self._changed = sides, update
        self._update = update
        # Drawn on the CPU, so that every kind of device sees the same gates.
        self._noise = torch.rand(len(self.heads)).to(self.device)

    def gates(self) -> Tensor:
        """This update's sample."""
        return self.distribution.sample(self.logits, self._noise)

    def typical(self) -> Tensor:
        """The gates without noise, in [0, 1]."""
        return self.distribution.typical(self.logits.detach())

    def is_open(self) -> Tensor:
        """Where `P(g = 1) > P(g = 0)`."""
        return self.distribution.is_open(self.logits.detach())

    def penalty(self) -> Tensor:
        """`lambda * L_C(phi)` (Sec. 6.1): the expected number of heads, in closed form."""
        rise = min(1.0, self._update / max(1, self.warmup))
        probabilities = self.distribution.open_probability(self.logits)
        return self.weight * rise * self.there(probabilities).sum()

    def sides(self) -> Tensor:
        """Each gate's state: 1 open, -1 closed, 0 undecided."""
        logits = self.logits.detach()
        one = self.distribution.one_probability(logits) >= DECIDED
        zero = self.distribution.zero_probability(logits) >= DECIDED
        return one.int() - zero.int()

    def undecided(self) -> list[Head]:
        """Heads whose gate is most often neither 0 nor 1."""
        return [h for h, side in zip(self.heads, self.sides(), strict=True) if side == 0]

    def doubts(self, updates: int, rate: float) -> str | None:
        """Adam moves a logit by about its learning rate per update, and 0 is where gates close."""
        if updates <= self.warmup:
            return (
                f"{self.too_few}: the penalty rises for {self.warmup} updates, but heads are"
                f" chosen after {updates}: lower --warmup, or raise --updates"
            )
        start = float(self.logits.detach().max())
        if rate * updates < start:
            return (
                f"{self.too_few}: gates begin at {start:g} and move by about {rate:g} per update,"
                f" so that none can close in {updates} updates: raise --updates, or"
                " --gate-learning-rate"
            )
        return None

    def settled(self) -> bool:
        """Whether no gate has changed for `patience` updates after the warm-up."""
        quiet = self._update - max(self._changed, self.warmup)
        return quiet >= self.patience and bool((self._sides != 0).all())

    def metrics(self) -> dict[str, float | list[float]]:
        """How many heads are there, expected and actual; undecided ones; open probabilities.

        A head in a block that is closed is not there.
        """
        probabilities = self.distribution.open_probability(self.logits.detach())
        return {
            "expected_open": float(self.there(probabilities).sum()),
            "open": len(self.kept()),
            "undecided": int((self.sides() == 0).sum()),
            "open_probability": [round(p, 4) for p in probabilities.tolist()],
        }

    def state(self) -> dict[str, Tensor]:
        """Logits, and the last update at which a gate changed sides."""
        quiet = torch.tensor([self._update, self._changed])
        return super().state() | {"sides": self._sides.cpu(), "quiet": quiet}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        super().load_state(state)
        self._sides = state["sides"].to(self.device)
        self._update, self._changed = state["quiet"].tolist()
