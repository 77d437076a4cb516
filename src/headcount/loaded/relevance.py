"""Where each step of one sentence's translation comes from: tokens and heads, by LRP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headcount.errors import UserError
from headcount.heads import Head, HeadTable
from headcount.loaded.attention import plot_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headcount.ranking.lrp.audit import AuditRow


@dataclass(frozen=True)
class Relevance:
    """Relevance of tokens and heads for every generation step of one sentence.

    Each step starts with 1 at the logit of its most probable token. What is neither at the source
    nor at the target was taken by biases on the way; `audit` has it layer by layer.

    steps          the pieces of the translation and EOS
    predicted      the most probable token of each step, which relevance starts from; with a given
                   target, or a beam, it may be another one
    source         `[steps, source tokens]`; target: `[steps, prefix tokens]`, 0 after the step
    heads          a head table; column `lrp`: share of the relevance of its layer, mean over steps
    by_step        the same share at every step, `[steps]` for each head; NaN where a layer's heads
                   add up to nothing
    """

    text: str
    translation: str
    source_tokens: list[str]
    target_tokens: list[str]
    steps: list[str]
    predicted: list[str]
    source: np.ndarray = field(repr=False)
    target: np.ndarray = field(repr=False)
    heads: HeadTable = field(repr=False)
    by_step: Mapping[Head, np.ndarray] = field(repr=False)
    audit: Sequence[AuditRow] = field(repr=False)

    @property
    def source_contribution(self) -> np.ndarray:
        """The share of each step's relevance that goes to the source (Voita et al. 2021)."""
        return source_contribution(self.source, self.target)

    def plot(self, axes: Axes | None = None) -> Figure:
        """Tokens against steps: which tokens each step comes from, source tokens first."""
        both = np.concatenate([self.source, self.target], axis=1)
        columns = [*self.source_tokens, *self.target_tokens]
        return plot_matrix(
            both, self.steps, columns, signed=True, divide=len(self.source_tokens), axes=axes
        )

    def at(self, step: int) -> HeadTable:
        """The head table of one step."""
        if not 0 <= step < len(self.steps):
            raise UserError(f"There is no step {step}.", f"Steps are 0 to {len(self.steps) - 1}.")
        table = HeadTable(self.by_step)
        shares = {head: float(values[step]) for head, values in self.by_step.items()}
        table.add("lrp", {head: share for head, share in shares.items() if not np.isnan(share)})
        return table


def source_contribution(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Share of the source in relevance `[steps, source tokens]` and `[steps, prefix tokens]`.

    By the sizes of the tokens' relevance: rules other than `zplus` also give negative ones, and
    then a quotient of signed sums could be anything. `zplus` gives none; there it is the quotient
    of Voita et al. (2021, Sec. 2), whose rule it is.
    """
    to_source, to_target = np.abs(source).sum(1), np.abs(target).sum(1)
    whole = to_source + to_target
    shares = np.full(len(whole), np.nan)
    np.divide(to_source, whole, out=shares, where=whole > 0)
    return shares
