"""The rules of relevance propagation, each as short as on a blackboard (App. A.2).

A neuron is a sum of contributions. A rule is one method, `fractions`: which fraction of the sum's
relevance does each contribution get? Everything else follows from it (`maps.py`). To change a rule,
edit its `fractions`. To add one, write a class and its line in `RULES`; `headcount rank --rule` and
the recipes of studies then know it.

Some rules also have a fast form (`fast.py`). A fast form is used only while it equals what
`fractions` gives, so an edited rule takes effect at once, only more slowly.

`LrpOptions` holds what else can be chosen; docs/ranking.md gives the reasons.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from headcount.errors import UserError
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


CHOICES: dict[str, tuple[str, ...]] = {
    "layer_norm": ("linear", "identity"),
    "bias": ("absorb", "share"),
    "attention": ("constant", "softmax"),
    "normalise": ("signed", "absolute", "neurons"),
}


@dataclass(frozen=True)
class LrpOptions:
    """How relevance is propagated (App. A.2) and summed over a head (App. A.3).

    rule        how a neuron's contributions share its relevance: a name of `RULES`
    layer_norm  `linear`: a linear map, its scale held fixed; `identity`: passes relevance through
    bias        `absorb`: takes its share and keeps it; `share`: leaves it to the inputs, in
                proportion, as the appendix's sums have no bias in them
    attention   `constant`: through the values, the weights held fixed; `softmax`: through the
                weights too, by the element-wise product rule
    normalise   over the heads of a layer: `signed` sums, `absolute` values of the sums, or sums of
                the absolute values of `neurons`
    epsilon     added to a denominator, away from zero
    """

    rule: str = "ratio"
    layer_norm: str = "linear"
    bias: str = "absorb"
    attention: str = "constant"
    normalise: str = "neurons"
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        RULES.find(self.rule)
        for field in fields(self):
            if field.name in CHOICES:
                _check(field.name, getattr(self, field.name))
        if not self.epsilon >= 0:
            raise UserError(f"An epsilon of {self.epsilon} is not possible.", "Choose 0 or more.")


def _check(name: str, value: str) -> None:
    choices = CHOICES[name]
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise UserError(
            f"There is no {name.replace('_', '-')} '{value}'.",
            f"{hint}Choose among {', '.join(choices)}.",
        )
