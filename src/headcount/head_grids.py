"""A column of the head table as a picture: one grid of layers by heads per site."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headcount.errors import UserError
from headcount.heads import SITE_NAMES, SITES, HeadTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CELL = 0.42


def plot_heads(table: HeadTable, name: str | None = None) -> Figure:
    """Draw a column of numbers; the darker, the more."""
    from matplotlib.figure import Figure

    name = name or next((n for n in table.columns if _numeric(table, n)), None)
    if name is None or not _numeric(table, name):
        raise UserError(
            "There is no column of numbers to draw." if name is None else f"{name} has no numbers.",
            "Rank the heads first.",
        )
    column = table[name]
    sites = [site for site in SITES if any(head.site == site for head in table.heads)]
    grids = [_grid(table, column, site) for site in sites]
    largest = max(float(np.nanmax(grid, initial=0.0)) for grid in grids) or 1.0
    smallest = min(0.0, *(float(np.nanmin(grid, initial=0.0)) for grid in grids))
    width = sum(CELL * grid.shape[1] + 0.7 for grid in grids)
    height = CELL * max(grid.shape[0] for grid in grids) + 0.9
    figure = Figure(figsize=(width, height), layout="constrained")
    ratios = [grid.shape[1] for grid in grids]
    axes = figure.subplots(1, len(grids), squeeze=False, width_ratios=ratios)[0]
    for site, grid, each in zip(sites, grids, axes, strict=True):
        each.imshow(grid, cmap="Blues", vmin=smallest, vmax=largest)
        for (layer, index), value in np.ndenumerate(grid):
            if not np.isnan(value):
                dark = value - smallest > 0.6 * (largest - smallest)
                ink = "white" if dark else "#222222"
                each.text(index, layer, f"{value:.2g}".replace("0.", ".", 1), ha="center",
                          va="center", fontsize=6, color=ink)  # fmt: skip
        each.set_title(SITE_NAMES[site], fontsize=8)
        each.set_xticks(range(grid.shape[1]))
        each.set_yticks(range(grid.shape[0]))
        each.set_xlabel("head", fontsize=8)
        each.tick_params(length=0, labelsize=7)
        each.spines[:].set_visible(False)
    axes[0].set_ylabel("layer", fontsize=8)
    figure.suptitle(name, fontsize=9)
    return figure


def _numeric(table: HeadTable, name: str) -> bool:
    values = [value for value in table[name].values() if value is not None]
    return bool(values) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _grid(table: HeadTable, column: dict[Any, Any], site: str) -> np.ndarray:
    """A column's values at a site, `[layers, heads]`, NaN where there is no head or no value."""
    heads = [head for head in table.heads if head.site == site]
    layers, indices = (1 + max(getattr(h, n) for h in heads) for n in ("layer", "index"))
    grid = np.full((layers, indices), np.nan)
    for head in heads:
        value = column.get(head)
        grid[head.layer, head.index] = np.nan if value is None else float(value)
    return grid
