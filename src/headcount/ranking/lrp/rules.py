"""The rules of relevance propagation, each as short as on a blackboard (App. A.2).

A neuron is a sum of contributions. A rule is one method, `fractions`: which fraction of the sum's
relevance does each contribution get? Everything else follows from it (`maps.py`). To change a rule,
edit its `fractions`. To add one, write a class and its line in `RULES`; `headcount rank --rule` and
the recipes of studies then know it.

Some rules also have a fast form (`fast.py`). A fast form is used only while it equals what
`fractions` gives, so an edited rule takes effect at once, only more slowly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from headcount.registry import Registry

ROUNDING = 100
"""A sum this many times the machine precision of the whole, or smaller, is a rounding error."""


class Rule(ABC):
    """How a neuron's relevance is shared among the contributions that it is the sum of."""

    name: ClassVar[str]
    help: ClassVar[str]

    def __init__(self, epsilon: float = 1e-6) -> None:
        """`epsilon` is added to denominators, away from zero."""
        self.epsilon = epsilon

    @abstractmethod
    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        """The fraction of their sum's relevance that each contribution along `dim` gets.

        A contribution of zero must get nothing: masked keys and padding contribute zeros. The
        factors of an element-wise product share as if they were the terms of a sum (App. A.2).
        """


class Ratio(Rule):
    """Definition 3 of the appendix: a contribution divided by the sum, with its sign.

    By default (linear layer norm, biases absorb, constant attention) every denominator is the
    activation that the relevance above was proportional to. They all cancel, and what runs is
    activation x gradient: `fast.Telescoped`, to which epsilon does not matter.
    """

    name = "ratio"
    help = "contribution / sum, the paper's appendix"

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        return contributions * self.inverse(contributions.sum(dim, keepdim=True))

    def inverse(self, total: Tensor) -> Tensor:
        """1 / (total + epsilon away from zero); where both are zero nothing is passed on."""
        away = torch.where(total < 0, total - self.epsilon, total + self.epsilon)
        return torch.where(away == 0, 0.0, 1 / away)


class AlphaBeta(Rule):
    """Positive contributions share the part alpha, negative ones the rest.

    Bach et al. 2015, Eq. 60. Where a neuron has contributions of one sign only, they get all of it.
    """

    name = "alphabeta"
    help = "positive and negative contributions share half each, the authors' later code"
    alpha: ClassVar[float] = 0.5

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        up, down = contributions.clamp(min=0), contributions.clamp(max=0)
        by_up, by_down = self.inverses(up.sum(dim, keepdim=True), down.sum(dim, keepdim=True))
        return up * by_up + down * by_down

    def inverses(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """alpha / sum of the positive contributions and beta / sum of the negative ones."""
        least = (up - down) * (ROUNDING * torch.finfo(up.dtype).eps)
        has_up, has_down = up > least, -down > least
        alpha = torch.where(has_down, self.alpha, 1.0) * has_up
        beta = torch.where(has_up, 1 - self.alpha, 1.0) * has_down
        safe_up, safe_down = torch.where(has_up, up, 1.0), torch.where(has_down, down, -1.0)
        return alpha / (safe_up + self.epsilon), beta / (safe_down - self.epsilon)


class ZPlus(AlphaBeta):
    """Only positive contributions share; where there are none, the negative ones."""

    name = "zplus"
    help = "positive contributions only"
    alpha = 1.0


RULES: Registry[type[Rule]] = Registry("rule", [Ratio, AlphaBeta, ZPlus])
