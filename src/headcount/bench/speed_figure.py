"""Quality against speed: the figure that sweeps, studies and `benchmarks/faster.py` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.lines import Line2D

from headcount.picture import Picture

WIDTH, HEIGHT = 3.4, 2.9
"""Inches of a panel."""


@dataclass(frozen=True)
class Point:
    """One model in one panel.

    speed     sentences per second, or how many times as fast as another model
    interval  half the width of the 95 % interval of its BLEU
    label     of its kind of model: one entry of the legend
    solid     a measured speed; one that is predicted is hollow
    """

    panel: str
    speed: float
    bleu: float
    label: str
    colour: str
    mark: str = "o"
    interval: float | None = None
    solid: bool = True


def draw_speeds(
    points: Sequence[Point], columns: int, speed: str = "sentences per second"
) -> Picture:
    """BLEU against speed: a panel for each engine and batch, `columns` of them side by side."""
    names = list(dict.fromkeys(point.panel for point in points))
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure = Picture(figsize=(WIDTH * columns, HEIGHT * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for spare in axes.flat[len(names) :]:
        spare.remove()
    panels = dict(zip(names, axes.flat, strict=False))
    entries: dict[str, Line2D] = {}
    for point in points:
        panel, colour = panels[point.panel], point.colour
        if point.interval is not None:
            panel.errorbar(
                point.speed, point.bleu, yerr=point.interval, color=colour, lw=0.5, alpha=0.4
            )
        [mark] = panel.plot(
            point.speed, point.bleu, point.mark, color=colour, ms=6,
            mfc=colour if point.solid else "none",
        )  # fmt: skip
        entries.setdefault(point.label, mark)
    for name, panel in panels.items():
        panel.set_title(name, fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.2)
    for panel in list(panels.values())[-columns:]:
        panel.set_xlabel(speed, fontsize=8)
    for panel in axes[:, 0]:
        panel.set_ylabel("BLEU", fontsize=8)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center",
        ncols=max(1, 2 * columns), fontsize=7, frameon=False,
    )  # fmt: skip
    return figure
