"""Figures 9 and 10: which attention keeps its heads when all of it is pruned (Sec. 6.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headcount.heads import SITE_NAMES, SITES
from headcount.study.cases import Case, cases_of, retained
from headcount.study.figures.drawing import (
    COLUMN,
    PAGE,
    Drawing,
    open_frame,
    panels_in_a_row,
    series_style,
    style,
)
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell

Counter = Callable[[StudyModel], int]


def sites_figure(results: StudyResults) -> Drawing | None:
    """Figure 9: active heads by attention type in models of different sparsity."""
    cases = _cases(results)
    if not cases:
        return None
    rows = [_site_row(case, model) for case in cases for model in _models(case)]
    return Drawing(
        "fig9-attention-types",
        "Figure 9",
        "Number of active heads of each attention type in models of different sparsity; all"
        " attention is pruned. The rightmost model is the full one.",
        _site_panels(cases, phone=False),
        rows,
        alt="Active heads by attention type: "
        + "; ".join(f"{r['total']} heads: {r['enc']}/{r['dec']}/{r['cross']}" for r in rows[:8])
        + ".",
        phone=_site_panels(cases, phone=True),
    )


def _site_panels(cases: Sequence[Case], phone: bool) -> Figure:
    width = COLUMN if len(cases) == 1 else PAGE
    with style():
        figure, panels = panels_in_a_row(len(cases), 2.5, width=width, phone=phone)
        for panel, case in zip(panels, cases, strict=True):
            counters = {SITE_NAMES[site]: _site_counter(site) for site in SITES}
            _lines(panel, case, counters)
            panel.set_title(case.label if len(cases) > 1 else "")
        columns = 1 if phone or len(cases) == 1 else 3
        _legend(figure, panels[0], columns)
    return figure


def decoder_layers_figure(results: StudyResults) -> Drawing | None:
    """Figure 10: active heads in pairs of adjacent decoder layers."""
    cases = _cases(results)
    if not cases:
        return None
    case = max(cases, key=lambda c: len(_models(c)))
    groups = layer_groups(len(case.full.heads.layers["dec"]))
    rows = [_layer_row(case, model, groups) for model in _models(case)]
    return Drawing(
        "fig10-decoder-layers",
        "Figure 10",
        "Number of active heads in different layers of the decoder in models of different"
        f" sparsity, {case.label}"
        + ("; pairs of adjacent layers are summed." if len(groups[0]) > 1 else "."),
        _layer_panels(case, groups, phone=False),
        rows,
        alt="Active decoder heads by layer, for self-attention and attention to the source.",
        phone=_layer_panels(case, groups, phone=True),
    )


def _layer_panels(case: Case, groups: Sequence[range], phone: bool) -> Figure:
    with style():
        figure, panels = panels_in_a_row(2, 2.5, phone=phone, sharey=True)
        for panel, site in zip(panels, ("dec", "cross"), strict=True):
            counters = {_group_name(group): _group_counter(site, group) for group in groups}
            _lines(panel, case, counters)
            panel.set_title(SITE_NAMES[site])
        if not phone:
            panels[1].set_ylabel("")
        _legend(figure, panels[0], 1 if phone else len(groups))
    return figure


def _legend(figure: Figure, panel: Axes, columns: int) -> None:
    handles, labels = panel.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def layer_groups(layers: int) -> list[range]:
    """Pairs of adjacent layers; single layers where there are fewer than four."""
    size = 2 if layers >= 4 else 1
    return [range(first, min(first + size, layers)) for first in range(0, layers, size)]


def _cases(results: StudyResults) -> list[Case]:
    return [case for case in cases_of(results) if case.all_sites_learned]


def _models(case: Case) -> list[StudyModel]:
    """Sparsest first, the full model last."""
    return [*reversed(case.all_sites_learned), case.full]


def _lines(axes: Axes, case: Case, counters: Mapping[str, Counter]) -> None:
    """One line per counter; in per cent of the full model where the counts differ there."""
    models = _models(case)
    totals = {name: count(case.full) for name, count in counters.items()}
    relative = len(set(totals.values())) > 1
    x = [retained(model) for model in models]
    for number, (name, count) in enumerate(counters.items()):
        scale = 100 / max(1, totals[name]) if relative else 1
        colour, marker = series_style(number)
        # Smaller and smaller markers, so that equal counts do not hide each other.
        axes.plot(
            x, [scale * count(m) for m in models], color=colour, marker=marker, label=name,
            ms=max(3.0, 6.5 - 1.5 * number),
        )  # fmt: skip
    axes.set_xlabel("heads left in the model")
    axes.set_ylabel("active heads, %" if relative else "active heads")
    axes.set_ylim(0, 1.06 * (100 if relative else max(totals.values(), default=1)))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.set_xlim(left=0)
    open_frame(axes)


def _site_counter(site: str) -> Counter:
    return lambda model: model.heads.count(site)


def _group_counter(site: str, group: Sequence[int]) -> Counter:
    return lambda model: sum(len(model.heads.layers[site][layer]) for layer in group)


def _group_name(group: Sequence[int]) -> str:
    return f"layer {group[0]}" if len(group) == 1 else f"layers {group[0]} and {group[-1]}"


def _site_row(case: Case, model: StudyModel) -> dict[str, Cell]:
    counts = {site: model.heads.count(site) for site in SITES}
    return {"setting": case.label, "model": model.id, "total": retained(model), **counts}


def _layer_row(case: Case, model: StudyModel, groups: Sequence[range]) -> dict[str, Cell]:
    row: dict[str, Cell] = {"setting": case.label, "model": model.id, "total": retained(model)}
    for site in ("dec", "cross"):
        for group in groups:
            row[f"{site} {_group_name(group)}"] = _group_counter(site, group)(model)
    return row
