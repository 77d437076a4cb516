"""What all figures share: a figure with its data and caption, colours, and how it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headcount.files import atomic_path, write_text
from headcount.role import ROLES, kinds_at
from headcount.study.tables import Cell, csv_text

COLUMN, PAGE = 3.35, 6.9
"""Inches: one column and the whole width of a page in the paper's style."""
PHONE = 2.6
"""Inches: as wide as the screen of a phone, with letters of the same size."""

OTHER = "other"
OTHER_COLOUR, OTHER_TEXT = "#d5d8dc", "#555555"

# Okabe and Ito's colours, safe for colour-blind readers, for lines and bars of several series.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#555555")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT = "#222222", "#9aa0a6"
HEAT = "Blues"

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "pdf.fonttype": 42,
    "svg.hashsalt": "headcount",  # the same picture is the same file
}
FORMATS: Mapping[str, dict[str, Any]] = {
    "pdf": {"metadata": {"CreationDate": None}},
    "png": {"dpi": 200},
    "svg": {"metadata": {"Date": None}, "transparent": True},
}


def function_colours() -> dict[str, str]:
    """The colour of every function of encoder heads, and of heads that have none."""
    return {kind: ROLES[kind].colour for kind in kinds_at("enc")} | {OTHER: OTHER_COLOUR}


def function_text(kind: str) -> str:
    """The colour of text on a function's colour."""
    return ROLES[kind].text_colour if kind in ROLES else OTHER_TEXT


@dataclass(frozen=True)
class Drawing:
    """A figure, its number in the paper, what it shows, and the numbers it was drawn from.

    `phone` is the same figure with its panels below each other, for a narrow screen.
    """

    name: str
    title: str
    caption: str
    figure: Figure
    data: list[dict[str, Cell]]
    alt: str
    phone: Figure | None = None

    def save(self, folder: Path) -> None:
        """Write `NAME.pdf`, `.png`, `.svg`, `NAME.csv` beside them, and `NAME-phone.svg`."""
        _save(self.figure, folder / self.name, FORMATS)
        if self.phone is not None:
            _save(self.phone, folder / f"{self.name}-phone", {"svg": FORMATS["svg"]})
        write_text(folder / f"{self.name}.csv", csv_text(self.data))


@dataclass(frozen=True)
class Nothing:
    """A figure that would be empty: a sentence takes its place."""

    name: str
    sentence: str


def _save(figure: Figure, path: Path, formats: Mapping[str, dict[str, Any]]) -> None:
    with style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # arranged once, the same in every format
        for ending, options in formats.items():
            with atomic_path(path.with_name(f"{path.name}.{ending}")) as partial:
                figure.savefig(partial, format=ending, **options)


@contextmanager
def style() -> Iterator[None]:
    """Draw inside this, so that a user's own matplotlib settings change nothing."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that arranges its own axes."""
    return Figure(figsize=(width, height), layout="constrained")


def panels_in_a_row(
    number: int,
    height: float,
    *,
    width: float = PAGE,
    phone: bool = False,
    in_a_row: int = 1,
    ratios: Sequence[float] | None = None,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Panels side by side; for a phone below each other, `in_a_row` of them in a row.

    height: inches of one row of panels; ratios: how wide the panels are, side by side
    """
    if not phone:
        figure = new_figure(width, height)
        grid = figure.subplots(1, number, squeeze=False, sharey=sharey, width_ratios=ratios)
        return figure, list(grid[0])
    rows = -(-number // in_a_row)
    figure = new_figure(PHONE, height * rows)
    grid = figure.subplots(rows, in_a_row, squeeze=False, sharey=sharey)
    for spare in grid.flat[number:]:
        spare.remove()
    return figure, list(grid.flat[:number])


def open_frame(axes: Axes) -> None:
    """Only the two lines that carry a scale."""
    axes.spines[["top", "right"]].set_visible(False)


def bare(axes: Axes) -> None:
    """No frame and no tick marks, for grids of cells."""
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def series_style(number: int) -> tuple[str, str]:
    """Colour and marker of a series; both differ, so that either is enough."""
    return SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
