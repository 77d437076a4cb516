"""How heads specialise while a model trains; the paper does not show this.

Heads take on functions long after BLEU has stopped rising quickly. These curves answer the first
question about any new model: has it been trained long enough to be analysed?
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.role.positional import THRESHOLD
from headcount.role.syntactic import MARGIN
from headcount.study.cases import Case, cases_of, first_seeds
from headcount.study.figures.drawing import (
    COLUMN,
    FAINT,
    PAGE,
    Drawing,
    open_frame,
    panels_in_a_row,
    series_style,
    style,
)
from headcount.study.results import StudyResults
from headcount.study.tables import Cell
from headcount.training.metrics import FILE, read_metrics

SHARES = {
    "share_left": "the token before",
    "share_own": "the token itself",
    "share_right": "the token after",
}
"""Keys of the log: the largest share, over heads, of queries whose argmax is at this offset."""
BEST, BASELINE = "_best", "_baseline"
"""How the keys of a relation end: accuracy of the best head, and of the most frequent position."""


@dataclass(frozen=True)
class Curves:
    """What a training logged about its heads: `values[key]` at each number of `tokens`.

    NaN where a key was not logged: relations are followed only where there are parses.
    """

    label: str
    tokens: tuple[float, ...]
    values: Mapping[str, tuple[float, ...]]

    @property
    def shares(self) -> dict[str, tuple[float, ...]]:
        """Largest shares by where heads look."""
        return {name: self.values[key] for key, name in SHARES.items() if key in self.values}

    @property
    def relations(self) -> dict[str, tuple[float, ...]]:
        """Best accuracy above the baseline by relation."""
        names = [key.removesuffix(BEST) for key in self.values if key.endswith(BEST)]
        return {
            name: tuple(
                best - baseline
                for best, baseline in zip(
                    self.values[name + BEST], self.values[name + BASELINE], strict=True
                )
            )
            for name in names
            if name + BASELINE in self.values
        }


def specialisation_figure(results: StudyResults) -> Drawing | None:
    """The largest shares at -1, 0 and +1, and relations above the baseline, against tokens seen."""
    curves = [curve for case in first_seeds(cases_of(results)) if (curve := curves_of(case))]
    if not curves:
        return None
    last = curves[0]
    ends = "; ".join(f"{name} {values[-1]:.2f}" for name, values in last.shares.items())
    return Drawing(
        "specialisation",
        "Specialisation",
        "Encoder heads while the model trains, on sentences of the development set: the share of"
        " tokens for which the best head looks at the token before, at the token itself or at the"
        f" token after (a head is positional from {THRESHOLD:g} on)"
        + (
            ", and how far the best head for each dependency relation is above the positional"
            " baseline, in points"
            if any(curve.relations for curve in curves)
            else ""
        )
        + ". Curves that still rise show that the model has not been trained long enough."
        + "".join(map(_late_parses, curves)),
        _draw(curves, phone=False),
        [row for curve in curves for row in _rows(curve)],
        alt=f"Specialisation against source tokens seen; at the end, {last.label}: {ends}.",
        phone=_draw(curves, phone=True),
    )


def curves_of(case: Case) -> Curves | None:
    """What a full model's training logged; None of fewer than three evaluations."""
    tokens, lines, seen = [], [], 0.0
    for line in read_metrics(case.full.folder / FILE):
        seen = float(line.get("source_tokens", seen))
        if line.get("kind") == "dev" and "share_left" in line and seen:
            tokens.append(seen)
            lines.append(line)
    if len(lines) < 3:
        return None
    keys = [key for key in lines[-1] if key in SHARES or key.endswith((BEST, BASELINE))]
    values = {key: tuple(float(line.get(key, math.nan)) for line in lines) for key in keys}
    return Curves(case.label, tuple(tokens), values)


def _late_parses(curves: Curves) -> str:
    """A remark where heads were watched on other sentences, with parses, from some point on."""
    for values in curves.relations.values():
        known = [not math.isnan(value) for value in values]
        if not known[0] and any(known):
            begin = curves.tokens[known.index(True)] / 1e6
            return (
                f" {curves.label}: from {begin:.1f} million tokens on heads were watched on parsed"
                " sentences, before on others; a step there need not be the model's."
            )
    return ""


def _draw(curves: Sequence[Curves], phone: bool) -> Figure:
    """A panel of shares per model, and one of relations where they were followed."""
    panels: list[tuple[Curves, bool]] = []
    for curve in curves:
        panels.append((curve, False))
        if curve.relations:
            panels.append((curve, True))
    width = COLUMN if len(panels) == 1 else PAGE
    with style():
        figure, axes = panels_in_a_row(len(panels), 2.4, width=width, phone=phone)
        for panel, (curve, relations) in zip(axes, panels, strict=True):
            _curves(panel, curve, relations)
            if len(curves) > 1:
                panel.set_title(curve.label)
    return figure


def _curves(axes: Axes, curves: Curves, relations: bool) -> None:
    millions = [tokens / 1e6 for tokens in curves.tokens]
    series = curves.relations if relations else curves.shares
    scale = 100 if relations else 1
    for number, (name, values) in enumerate(series.items()):
        colour, marker = series_style(number)
        every = max(1, len(millions) // 12)
        axes.plot(
            millions, [scale * value for value in values], color=colour, marker=marker,
            markevery=every, ms=3, label=name,
        )  # fmt: skip
    axes.axhline(scale * (MARGIN if relations else THRESHOLD), color=FAINT, ls="--", lw=1)
    axes.set_xlabel("source tokens seen, millions")
    axes.set_xlim(left=0)
    if relations:
        axes.set_ylabel("best head above baseline, points")
    else:
        axes.set_ylabel("share of tokens, best head")
        axes.set_ylim(0, 1.02)
    axes.legend(loc="best", handlelength=1.5)
    open_frame(axes)


def _rows(curves: Curves) -> list[dict[str, Cell]]:
    return [
        {"setting": curves.label, "source_tokens": tokens,
         **{key: None if math.isnan(values[number]) else values[number]
            for key, values in curves.values.items()}}
        for number, tokens in enumerate(curves.tokens)
    ]  # fmt: skip
