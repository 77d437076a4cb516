"""Figures 3 and 4: where dependents stand, and how well heads find them (Sec. 5.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.role.head_roles import BestHead
from headcount.role.relations import PAPER_RELATIONS
from headcount.role.syntactic import short_arrow
from headcount.study.cases import Case, cases_of, first_seeds
from headcount.study.figures.drawing import (
    COLUMN,
    INK,
    PAGE,
    Drawing,
    open_frame,
    panels_in_a_row,
    series_style,
    style,
)
from headcount.study.results import StudyResults
from headcount.study.tables import Cell

REACH = 6
"""Offsets on either side; what is farther away is summed up at the ends of the CSV data only."""


def offsets_figure(results: StudyResults) -> Drawing | None:
    """Figure 3: the distribution of the dependent's relative position, one panel per relation."""
    domains = _one_of_each_domain(results)
    if not domains:
        return None
    relations = [r for r in PAPER_RELATIONS if any(counts.get(r) for counts in domains.values())]
    return Drawing(
        "fig3-offsets",
        "Figure 3",
        "Distribution of the relative position of the dependent for different dependency"
        f" relations ({', '.join(domains)}).",
        _offset_panels(relations, domains, phone=False),
        _offset_rows(domains),
        alt="Bar charts of the relative position of dependents: "
        + ", ".join(f"{r} most often at {_mode(domains, r):+d}" for r in relations)
        + ".",
        phone=_offset_panels(relations, domains, phone=True),
    )


def _offset_panels(
    relations: Sequence[str], domains: Mapping[str, Mapping[str, Mapping[int, int]]], phone: bool
) -> Figure:
    """A panel per relation; two in a row on a phone."""
    with style():
        figure, panels = panels_in_a_row(len(relations), 1.75, phone=phone, in_a_row=2, sharey=True)
        for panel, relation in zip(panels, relations, strict=True):
            _offsets(panel, relation, domains)
            if phone:
                panel.set_xticks([-4, 0, 4], ["−4", "0", "4"])
        panels[0].set_ylabel("share of instances")
        figure.supxlabel("position of the dependent, from its head", fontsize=8)
        if len(domains) > 1:
            panels[-1].legend()
    return figure


def _one_of_each_domain(results: StudyResults) -> dict[str, Mapping[str, Mapping[int, int]]]:
    """Offsets are those of the English side: one distribution for each domain."""
    offsets: dict[str, Mapping[str, Mapping[int, int]]] = {}
    for case in first_seeds(cases_of(results)):
        roles = case.full.roles
        if roles is not None and any(roles.offsets.get(r) for r in PAPER_RELATIONS):
            offsets.setdefault(case.full.domain or case.label, roles.offsets)
    return offsets


def _offsets(
    axes: Axes, relation: str, domains: Mapping[str, Mapping[str, Mapping[int, int]]]
) -> None:
    shown = np.arange(-REACH, REACH + 1)
    width = 0.8 / len(domains)
    for number, (domain, relations) in enumerate(domains.items()):
        counts = relations.get(relation, {})
        total = sum(counts.values()) or 1
        heights = [counts.get(int(offset), 0) / total for offset in shown]
        positions = shown + (number - (len(domains) - 1) / 2) * width
        axes.bar(positions, heights, width, color=series_style(number)[0], label=domain)
    axes.set_title(relation)
    axes.set_xticks([-4, -2, 0, 2, 4], ["−4", "−2", "0", "2", "4"])
    open_frame(axes)


def _offset_rows(domains: Mapping[str, Mapping[str, Mapping[int, int]]]) -> list[dict[str, Cell]]:
    return [
        {"domain": domain, "relation": relation, "offset": offset, "count": counts[offset],
         "share": counts[offset] / sum(counts.values())}
        for domain, relations in domains.items()
        for relation, counts in relations.items()
        for offset in sorted(counts)
    ]  # fmt: skip


def _mode(domains: Mapping[str, Mapping[str, Mapping[int, int]]], relation: str) -> int:
    counts = next(offsets[relation] for offsets in domains.values() if offsets.get(relation))
    return max(counts, key=lambda offset: counts[offset])


def dependency_scores_figure(results: StudyResults) -> Drawing | None:
    """Figure 4: the best head for each relation and direction, across target languages."""
    cases = [c for c in first_seeds(cases_of(results)) if c.full.roles and c.full.roles.relations]
    if not cases:
        return None
    domain = _widest_domain(cases)
    cases = [case for case in cases if case.full.domain == domain]
    lines = {case.label: _paper_lines(case) for case in cases}
    keys = list(dict.fromkeys(key for accuracies in lines.values() for key in accuracies))
    if not keys:
        return None
    return Drawing(
        "fig4-dependency-scores",
        "Figure 4",
        "Accuracy of the best encoder head for each dependency relation and direction, with 95 %"
        f" intervals ({domain or cases[0].label}); short lines are the positional baseline.",
        _score_panel(lines, keys, phone=False),
        [_score_row(case, line) for case in cases for line in lines[case.label].values()],
        alt="Accuracy of the best head by relation and direction, against the baseline, for "
        + ", ".join(lines)
        + ".",
        phone=_score_panel(lines, keys, phone=True),
    )


def _score_panel(
    lines: Mapping[str, Mapping[tuple[str, str], BestHead]],
    keys: Sequence[tuple[str, str]],
    phone: bool,
) -> Figure:
    width = COLUMN if len(lines) == 1 else PAGE
    with style():
        figure, panels = panels_in_a_row(1, 2.3, width=width, phone=phone)
        _scores(panels[0], lines, keys, phone)
        columns = 2 if phone else len(lines) + 1
        figure.legend(loc="outside upper center", ncols=columns)
    return figure


def _widest_domain(cases: Sequence[Case]) -> str:
    """The domain with most language pairs, the first among equals."""
    names = [case.full.domain for case in cases]
    return max(dict.fromkeys(names), key=names.count)


def _paper_lines(case: Case) -> dict[tuple[str, str], BestHead]:
    assert case.full.roles is not None
    return {
        (line.relation, line.arrow): line
        for line in case.full.roles.relations
        if line.relation in PAPER_RELATIONS and line.score.value is not None
    }


def _scores(
    axes: Axes,
    lines: Mapping[str, Mapping[tuple[str, str], BestHead]],
    keys: Sequence[tuple[str, str]],
    phone: bool,
) -> None:
    width = 0.8 / len(lines)
    for number, (label, accuracies) in enumerate(lines.items()):
        for place, key in enumerate(keys):
            line = accuracies.get(key)
            if line is None or line.score.value is None:
                continue
            x = place + (number - (len(lines) - 1) / 2) * width
            value = 100 * line.score.value
            low = value if line.score.low is None else 100 * line.score.low
            high = value if line.score.high is None else 100 * line.score.high
            axes.bar(
                x, value, 0.92 * width, color=series_style(number)[0],
                label=label if place == 0 else "_",
            )  # fmt: skip
            axes.errorbar(
                x, value, [[max(0, value - low)], [max(0, high - value)]],
                color=INK, elinewidth=0.6, capsize=1.2, capthick=0.6,
            )  # fmt: skip
            if line.baseline.value is not None:
                half = 0.46 * width
                axes.hlines(
                    100 * line.baseline.value, x - half, x + half, color="black", lw=1.6,
                    label="baseline" if place == 0 and number == 0 else "_",
                )  # fmt: skip
    names = [f"{relation}\n{short_arrow(arrow)}" for relation, arrow in keys]
    axes.set_xticks(range(len(keys)), names, fontsize=5.3 if phone or len(lines) == 1 else 6.5)
    if phone:
        axes.tick_params(axis="x", labelrotation=60)
    axes.set_ylabel("accuracy, %")
    axes.set_ylim(0, 100)
    open_frame(axes)


def _score_row(case: Case, line: BestHead) -> dict[str, Cell]:
    return {
        "setting": case.label, "relation": line.relation, "direction": line.arrow,
        "head": str(line.head), "accuracy": line.score.value,
        "accuracy_low": line.score.low, "accuracy_high": line.score.high,
        "baseline": line.baseline.value, "instances": line.instances,
    }  # fmt: skip
