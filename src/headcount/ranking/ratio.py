"""The appendix's own rule: a contribution divided by the sum, signs and all (App. A.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.ranking.rule import (
    Flow,
    HeadFlow,
    LinearMap,
    Rule,
    SumFlow,
    Window,
    inverse_scale,
    to_keys,
)


class Ratio(Rule):
    """Definition 3, the weight ratio."""

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        return contributions * self.inverse(contributions.sum(dim, keepdim=True))

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        # Not y - b: the bias may be many times as large as the rest.
        inverse = self.inverse(F.linear(x, map_.weight) if self.bias_shares else y)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            shared = message.mul_(at(inverse))
            return (shared @ map_.weight).mul_(at(x)), self._taken(shared, map_.bias)

        return down

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        inverse = self.inverse(y - norm.bias if self.bias_shares else y)
        gain = norm.weight * inverse_scale(x, norm)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            shared = message.mul_(at(inverse))
            taken = self._taken(shared, norm.bias)
            shared.mul_(at(gain))
            return shared.sub_(shared.mean(-1, keepdim=True)).mul_(at(x)), taken

        return down

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        inverse = self.inverse(outputs)

        def down(message: Tensor, at: Window, keys: int) -> Tensor:
            shared = to_keys(message.mul_(at.heads(inverse)), weights, at, keys)
            return shared.mul_(Window(at.rows, 0, keys).heads(values))

        return down

    def inverse(self, total: Tensor) -> Tensor:
        """1 / (total + epsilon away from zero); where both are zero nothing is passed on."""
        away = torch.where(total < 0, total - self.epsilon, total + self.epsilon)
        return torch.where(away == 0, 0.0, 1 / away)

    def _taken(self, shared: Tensor, bias: Tensor) -> Tensor | None:
        return None if self.bias_shares else (shared @ bias).sum()


class Telescoped(Rule):
    """`Ratio` where every denominator is the activation above it, so that they all cancel.

    A message is relevance / activation. It starts as d log(logit) and goes down as a gradient does
    when attention weights and the scales of layer norm are constants; epsilon has no part in it.
    """

    loses_nothing = True

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        raise NotImplementedError("messages of this rule are not relevance")

    def start(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        logits = (rows * states).sum(-1) + bias
        return rows / logits[..., None], bias / logits

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        return lambda message, at: (message @ map_.weight, None)

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        gain = norm.weight * inverse_scale(x, norm)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            scaled = message * at(gain)
            return scaled.sub_(scaled.mean(-1, keepdim=True)), None

        return down

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        return lambda message, at, keys: to_keys(message, weights, at, keys)

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        # One tensor for both sides: `linear` and `norm` leave what they are given as it is.
        return lambda message, at: (message, message)

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        return message * gate

    def activation(self, before: Tensor, after: Tensor) -> Flow:
        factor = (after / before).nan_to_num_(0.0)  # 0 / 0
        return lambda message, at: (message.mul_(at(factor)), None)

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        return message * activation
