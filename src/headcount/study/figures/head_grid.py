"""Figures 1 and 2: relevance, confidence and function of heads, sorted by relevance (Sec. 4, 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from headcount.heads import Head
from headcount.ranking.measures import MEASURES
from headcount.role.head_roles import Role
from headcount.study.cases import Case, cases_of, first_seeds, functions_of
from headcount.study.figures.drawing import (
    HEAT,
    OTHER,
    PAGE,
    Drawing,
    bare,
    function_colours,
    function_text,
    new_figure,
    panels_in_a_row,
    style,
)
from headcount.study.results import StudyModel, StudyResults
from headcount.study.tables import Cell

LABELLED = 3
"""Functions named in a cell; of more, their number is shown."""


@dataclass(frozen=True)
class HeadGrid:
    """A model's encoder heads: one row per layer, in each row the most relevant head first."""

    model: StudyModel
    rows: list[list[Head]]

    @classmethod
    def of(cls, model: StudyModel) -> HeadGrid:
        """Sorted by relevance where it was measured."""
        relevance = model.column("lrp")
        layers = range(len(model.heads.layers["enc"]))
        return cls(
            model,
            [
                sorted(model.layer("enc", i), key=lambda h: (-relevance.get(h, 0.0), h.index))
                for i in layers
            ],
        )

    @property
    def width(self) -> int:
        """Heads in the widest layer."""
        return max((len(row) for row in self.rows), default=0)

    def values(self, column: str) -> np.ndarray:
        """`[layers, heads]`, NaN where there is no head or no value."""
        table = np.full((len(self.rows), self.width), np.nan)
        values = self.model.column(column)
        for i, row in enumerate(self.rows):
            for j, head in enumerate(row):
                table[i, j] = values.get(head, np.nan)
        return table

    def data(self, label: str) -> list[dict[str, Cell]]:
        """One row per head, in the order of the figure."""
        relevance, confidence = self.model.column("lrp"), self.model.column("confidence")
        return [
            {
                "setting": label,
                "layer": head.layer,
                "rank": rank,
                "head": str(head),
                "relevance": relevance.get(head),
                "confidence": confidence.get(head),
                "functions": "; ".join(map(str, functions_of(self.model, head))),
            }
            for row in self.rows
            for rank, head in enumerate(row, start=1)
        ]


def heads_figure(results: StudyResults) -> Drawing | None:
    """Figure 1: the first setting, with relevance, confidence and functions."""
    cases = _drawable(results)
    if not cases:
        return None
    case = cases[0]
    columns = [c for c in ("lrp", "confidence") if case.full.column(c)]
    return Drawing(
        "fig1-heads",
        "Figure 1",
        f"Relevance (LRP), confidence and function of encoder self-attention heads, {case.label}."
        " In each layer heads are sorted by relevance; cells name the functions: the relative"
        " position, the direction of a dependency, or rare words.",
        _blocks([case], columns),
        _rows([case]),
        alt=_alt([case]),
        phone=_phone_blocks([case], columns),
    )


def heads_of_other_pairs_figure(results: StudyResults) -> Drawing | None:
    """Figure 2: relevance and functions for all further settings, one block each."""
    cases = _drawable(results)[1:]
    if not cases:
        return None
    columns = [c for c in ("lrp",) if any(case.full.column(c) for case in cases)]
    return Drawing(
        "fig2-heads-of-other-pairs",
        "Figure 2",
        "Relevance (LRP) and function of encoder self-attention heads: "
        + "; ".join(case.label for case in cases)
        + ". In each layer heads are sorted by relevance.",
        _blocks(cases, columns),
        _rows(cases),
        alt=_alt(cases),
        phone=_phone_blocks(cases, columns),
    )


def _drawable(results: StudyResults) -> list[Case]:
    cases = first_seeds(cases_of(results))
    return [c for c in cases if c.full.column("lrp") or c.full.roles is not None]


def _blocks(cases: Sequence[Case], columns: Sequence[str]) -> Figure:
    """One row of panels per case: a heat map per column, then the functions."""
    grids = [HeadGrid.of(case.full) for case in cases]
    layers = max(len(grid.rows) for grid in grids)
    with style():
        figure = new_figure(PAGE, (0.28 * layers + 0.55) * len(cases) + 0.3)
        ratios = [1.0] * len(columns) + [2.0]
        panels = figure.subplots(len(cases), len(ratios), squeeze=False, width_ratios=ratios)
        for row, (case, grid) in enumerate(zip(cases, grids, strict=True)):
            for panel, column in zip(panels[row], columns, strict=False):
                _heat(panel, grid, column, _title(case, column, cases))
            _functions(panels[row][-1], grid, "functions")
            panels[row][0].set_ylabel("layer")
        _legend(figure, grids)
    return figure


def _phone_blocks(cases: Sequence[Case], columns: Sequence[str]) -> Figure:
    """The same panels below each other, the functions of a case first."""
    grids = [HeadGrid.of(case.full) for case in cases]
    layers = max(len(grid.rows) for grid in grids)
    with style():
        number = len(cases) * (1 + len(columns))
        figure, panels = panels_in_a_row(number, 0.26 * layers + 0.5, phone=True)
        remaining = iter(panels)
        for case, grid in zip(cases, grids, strict=True):
            _functions(next(remaining), grid, _title(case, "functions", cases), "left")
            for column in columns:
                _heat(next(remaining), grid, column, _title(case, column, cases))
        for panel in panels:
            panel.set_ylabel("layer")
        _legend(figure, grids, phone=True)
    return figure


def _title(case: Case, column: str, cases: Sequence[Case]) -> str:
    title = MEASURES[column].label if column in MEASURES else column
    return title if len(cases) == 1 else f"{case.label}: {title}"


def _legend(figure: Figure, grids: Sequence[HeadGrid], phone: bool = False) -> None:
    handles = [Patch(color=function_colours()[kind], label=kind) for kind in _kinds(grids)]
    if phone:
        figure.legend(handles=handles, loc="outside upper left", ncols=2)
    else:
        figure.legend(handles=handles, loc="outside lower right", ncols=len(handles))


def _rows(cases: Sequence[Case]) -> list[dict[str, Cell]]:
    return [row for case in cases for row in HeadGrid.of(case.full).data(case.label)]


def _heat(axes: Axes, grid: HeadGrid, column: str, title: str) -> None:
    """Values as colours, each written into its cell."""
    values = grid.values(column)
    shown = np.ma.masked_invalid(values)
    top = float(shown.max()) if shown.count() else 1.0
    axes.imshow(shown, cmap=HEAT, vmin=0, vmax=max(top, 1e-9), aspect="auto")
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):
            dark = value > 0.6 * top
            axes.text(
                j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5.5,
                color="white" if dark else "#333333",
            )  # fmt: skip
    _frame(axes, grid, f"{title}, %", "left")


def _functions(
    axes: Axes, grid: HeadGrid, title: str, side: Literal["left", "right"] = "right"
) -> None:
    """Each head's functions: stripes of their colours, named where there is room."""
    for i, row in enumerate(grid.rows):
        for j, head in enumerate(row):
            draw_functions(axes, j - 0.5, i - 0.5, functions_of(grid.model, head))
    axes.set_xlim(-0.5, grid.width - 0.5)
    axes.set_ylim(len(grid.rows) - 0.5, -0.5)
    _frame(axes, grid, title, side)


def draw_functions(axes: Axes, x: float, y: float, functions: Sequence[Role]) -> None:
    """A cell of size 1 whose corner is at (x, y); every kind of function is a stripe of it."""
    kinds = kinds_of(functions)
    gap, height = 0.04, (1 - 0.08) / len(kinds)
    for number, kind in enumerate(kinds):
        corner = (x + gap, y + gap + number * height)
        box = Rectangle(corner, 1 - 2 * gap, height, color=function_colours()[kind], lw=0)
        axes.add_patch(box)
        own = [function for function in functions if function.kind == kind]
        axes.text(
            x + 0.5, corner[1] + height / 2, _label(own, len(kinds)), ha="center", va="center",
            fontsize=5.2 if len(kinds) == 1 else 4.8, linespacing=0.95, color=function_text(kind),
        )  # fmt: skip


def kinds_of(functions: Sequence[Role]) -> list[str]:
    """The kinds of some functions, each once."""
    return list(dict.fromkeys(function.kind for function in functions)) or [OTHER]


def _label(functions: Sequence[Role], kinds: int) -> str:
    """The names of functions, two in a line where a cell has several kinds of them."""
    names = list(dict.fromkeys(function.label for function in functions))
    room = LABELLED if kinds == 1 else 1
    if len(names) > room + (kinds == 1):
        names = [*names[: room - 1], f"+{len(names) - room + 1}"] if room > 1 else [f"{len(names)}"]
    return "\n".join(names)


def _frame(axes: Axes, grid: HeadGrid, title: str, side: Literal["left", "right"]) -> None:
    bare(axes)
    axes.set_title(title, loc=side)
    axes.set_xticks([0, grid.width - 1] if grid.width > 1 else [0])
    axes.set_xticklabels(["most", "least relevant"][: 2 if grid.width > 1 else 1])
    if grid.width > 1:
        axes.get_xticklabels()[-1].set_horizontalalignment("right")
    axes.set_yticks(range(len(grid.rows)), [str(i) for i in range(len(grid.rows))])


def _kinds(grids: Sequence[HeadGrid]) -> list[str]:
    """The kinds of functions that occur, with heads that have none."""
    heads = [(grid.model, head) for grid in grids for row in grid.rows for head in row]
    present = {function.kind for model, head in heads for function in functions_of(model, head)}
    return [kind for kind in function_colours() if kind in present or kind == OTHER]


def _alt(cases: Sequence[Case]) -> str:
    parts = []
    for case in cases:
        named = [h for h in case.full.heads.heads(("enc",)) if functions_of(case.full, h)]
        parts.append(f"{case.label}: {len(named)} of {case.encoder_heads} encoder heads have a"
                     " function")  # fmt: skip
    return "Grid of heads by layer. " + ". ".join(parts) + "."
