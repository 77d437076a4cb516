"""Figures 7 and 8: quality with fewer encoder heads, and what the remaining heads do (Sec. 6.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from headcount.pruning.methods import METHODS, method_named
from headcount.role.head_roles import Role
from headcount.study.cases import Case, by_setting, cases_of, functions_of, mean_heads, retained
from headcount.study.figures.drawing import (
    COLUMN,
    FAINT,
    INK,
    OTHER,
    PAGE,
    PHONE,
    Drawing,
    Nothing,
    bare,
    function_colours,
    function_text,
    new_figure,
    open_frame,
    panels_in_a_row,
    series_style,
    style,
)
from headcount.study.figures.head_grid import kinds_of
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell

ENCODER = ("enc",)
FIGURE_8 = "fig8-functions-of-retained-heads"


def quality_figure(results: StudyResults) -> Drawing | None:
    """Figure 7: BLEU against retained encoder heads, every way to choose them in the same axes."""
    cases = [
        case
        for case in cases_of(results)
        if case.full.bleu is not None and any(m.bleu is not None for m in case.pruned_at(ENCODER))
    ]
    if not cases:
        return None
    rows = [_quality_row(case, model) for case in cases for model in (case.full, *_scored(case))]
    seeds = any(len(group) > 1 for case in cases for group in by_setting(_scored(case)))
    return Drawing(
        "fig7-bleu",
        "Figure 7",
        "BLEU on the test set as a function of the number of retained encoder heads, with 95 %"
        " intervals over sentences; the dashed line and band are the full model."
        + (" Each seed is a point; lines go through means over seeds." if seeds else ""),
        _quality_panels(cases, phone=False),
        rows,
        alt="BLEU against retained encoder heads: "
        + "; ".join(f"{row['model']} {row['heads']} heads {row['bleu']:.1f}" for row in rows[:8])
        + ".",
        phone=_quality_panels(cases, phone=True),
    )


def _quality_panels(cases: Sequence[Case], phone: bool) -> Figure:
    methods = _methods(cases)
    width = COLUMN if len(cases) == 1 else PAGE
    with style():
        figure, panels = panels_in_a_row(len(cases), 2.6, width=width, phone=phone)
        for panel, case in zip(panels, cases, strict=True):
            _quality(panel, case, methods, titled=len(cases) > 1)
        panels[0].set_ylabel("BLEU")
        legends = [zip(*panel.get_legend_handles_labels(), strict=True) for panel in panels]
        handles = {label: handle for legend in legends for handle, label in legend}
        columns = 2 if phone else 2 * len(cases)
        figure.legend(
            list(handles.values()), list(handles), loc="outside lower center", ncols=columns
        )
    return figure


def _methods(cases: Sequence[Case]) -> list[str]:
    names = {str(model.method) for case in cases for model in _scored(case)}
    return [name for name in METHODS if name in names] + sorted(names - set(METHODS))


def _scored(case: Case) -> list[StudyModel]:
    return [model for model in case.pruned_at(ENCODER) if model.bleu is not None]


def _quality(axes: Axes, case: Case, methods: Sequence[str], titled: bool) -> None:
    full, total = case.full.scores, case.encoder_heads
    assert full.bleu is not None
    if full.bleu_interval is not None:
        band = (full.bleu - full.bleu_interval, full.bleu + full.bleu_interval)
        axes.axhspan(*band, color=FAINT, alpha=0.18, lw=0)
    axes.axhline(full.bleu, color=FAINT, ls="--", lw=1)
    axes.plot([total], [full.bleu], "*", color=INK, ms=7, ls="", label="full model", clip_on=False)
    for number, method in enumerate(methods):
        models = [model for model in _scored(case) if model.method == method]
        if not models:
            continue
        _, marker = series_style(number)
        way = method_named(method)
        # A little apart, so that intervals of the same number of heads do not hide each other.
        apart = 0.006 * total * (number - (len(methods) - 1) / 2)
        x = [retained(model, ENCODER) + apart for model in models]
        y = [model.bleu or 0.0 for model in models]
        spread = [model.scores.bleu_interval or 0.0 for model in models]
        axes.errorbar(
            x, y, spread, color=way.colour, marker=marker, label=way.label,
            elinewidth=0.6, capsize=1.5, capthick=0.6, lw=0,
        )  # fmt: skip
        line = sorted(
            (mean_heads(group, ENCODER) + apart, fmean(m.bleu or 0.0 for m in group))
            for group in by_setting(models)
        )
        axes.plot(*zip(*line, strict=True), color=way.colour, lw=1.2)
    axes.set_xlim(0, total * 1.03)
    axes.set_xlabel("retained encoder heads")
    if titled:
        axes.set_title(case.label)
    open_frame(axes)


def _quality_row(case: Case, model: StudyModel) -> dict[str, Cell]:
    return {
        "setting": case.label, "model": model.id, "method": model.method or "full",
        "heads": retained(model, ENCODER), "bleu": model.bleu,
        "bleu_interval": model.scores.bleu_interval, "seed": model.seed,
        "penalty": model.penalty,
    }  # fmt: skip


def functions_figure(results: StudyResults) -> Drawing | Nothing | None:
    """Figure 8: functions of the encoder heads that remain, one column per model."""
    cases = [case for case in cases_of(results) if case.full.roles and _analysed(case)]
    if not cases:
        return None
    case = max(cases, key=lambda c: len(_analysed(c)))
    models = [case.full, *_analysed(case)]
    if not any(functions for model in models for functions in _by_function(model)):
        return Nothing(
            FIGURE_8,
            f"Functions of the heads that are left (the paper's Figure 8): neither the full"
            f" {case.label} model nor its prunings have a head with one.",
        )
    return Drawing(
        FIGURE_8,
        "Figure 8",
        f"Functions of encoder heads retained after pruning, {case.label}. Each column is a model"
        " with all of its remaining encoder heads, ordered by function; a number tells how many"
        " functions a head has, where it has several.",
        _function_columns(models, phone=False),
        [row for model in models for row in _function_rows(model)],
        alt="Columns of heads coloured by function: "
        + "; ".join(_counted(model) for model in models)
        + ".",
        phone=_function_columns(models, phone=True),
    )


def _function_columns(models: Sequence[StudyModel], phone: bool) -> Figure:
    columns = [_by_function(model) for model in models]
    tallest = max(map(len, columns))
    width = PHONE if phone else min(PAGE, 0.9 + 0.45 * len(models) + 1.3)
    with style():
        figure = new_figure(width, 0.1 * tallest + (1.05 if phone else 0.75))
        axes = figure.subplots()
        for x, column in enumerate(columns):
            for y, functions in enumerate(column):
                _cell(axes, x - 0.5, y, functions)
        _finish_functions(axes, models, tallest)
        figure.legend(
            handles=[Patch(color=c, label=kind) for kind, c in function_colours().items()],
            loc="outside lower center" if phone else "outside right center",
            ncols=2 if phone else 1,
        )
    return figure


def _analysed(case: Case) -> list[StudyModel]:
    """Learned encoder prunings with roles, one per setting, of the method with most settings."""
    models = [model for model in case.encoder_learned if model.roles is not None]
    first = [group[0] for group in by_setting(models)]
    counts = Counter(model.method for model in first)
    method = max(counts, key=counts.__getitem__, default=None)
    return [model for model in first if model.method == method]


def _by_function(model: StudyModel) -> list[list[Role]]:
    """The functions of each head, heads ordered by the first of them."""
    kept = [functions_of(model, head) for head in model.heads.heads(ENCODER)]

    kinds = list(function_colours())

    def order(functions: list[Role]) -> tuple[int, str, int]:
        kind = functions[0].kind if functions else OTHER
        return kinds.index(kind), functions[0].name if functions else "", -len(functions)

    return sorted(kept, key=order)


def _cell(axes: Axes, x: float, y: float, functions: Sequence[Role]) -> None:
    """One head: its kinds of functions side by side, and how many functions there are."""
    kinds = kinds_of(functions)
    width = 0.92 / len(kinds)
    for number, kind in enumerate(kinds):
        corner = (x + 0.04 + number * width, y + 0.06)
        axes.add_patch(Rectangle(corner, width, 0.88, color=function_colours()[kind], lw=0))
    if len(functions) > 1:
        colour = function_text(kinds[0])
        place = x + 0.04 + width / 2
        axes.text(
            place, y + 0.52, str(len(functions)), ha="center", va="center", fontsize=5.5,
            color=colour, weight="bold",
        )  # fmt: skip


def _finish_functions(axes: Axes, models: Sequence[StudyModel], tallest: int) -> None:
    bare(axes)
    axes.set_xlim(-0.6, len(models) - 0.4)
    axes.set_ylim(tallest + 0.2, -0.2)
    axes.set_xticks(range(len(models)), [str(retained(model, ENCODER)) for model in models])
    axes.set_yticks([])
    axes.set_xlabel("encoder heads in the model")


def _function_rows(model: StudyModel) -> list[dict[str, Cell]]:
    rows: list[dict[str, Cell]] = []
    for head in model.heads.heads(ENCODER):
        functions = functions_of(model, head)
        rows.append(
            {"model": model.id, "heads": retained(model, ENCODER), "head": str(head),
             "kind": functions[0].kind if functions else OTHER, "functions": len(functions),
             "names": "; ".join(map(str, functions))}
        )  # fmt: skip
    return rows


def _counted(model: StudyModel) -> str:
    heads = model.heads.heads(ENCODER)
    special = sum(bool(functions_of(model, head)) for head in heads)
    return f"{len(heads)} heads, {special} with a function"
