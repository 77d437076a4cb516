"""What can be chosen about layer-wise relevance propagation; docs/ranking.md gives the reasons."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields

from headcount.errors import UserError
from headcount.ranking.lrp.rules import RULES

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
    normalise: str = "absolute"
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
