"""Pictures of one sentence: maps of tokens against tokens, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CELL = 0.3
"""Inches per token."""
WEIGHTS, SIGNED = "Blues", "RdBu"


def plain_token(token: str, place: int) -> str:
    """A token as readers see it: without the mark of a word start, with a dot inside a word."""
    if token in ("<s>", "</s>"):
        return {"<s>": "START", "</s>": "EOS"}[token]
    if token.startswith("▁"):
        return token[1:] or "▁"
    return f"·{token}" if place > 0 and token[:1].isalnum() else token


def plain_tokens(tokens: Sequence[str]) -> list[str]:
    """`plain_token` of each."""
    return [plain_token(token, place) for place, token in enumerate(tokens)]


def plot_matrix(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    signed: bool = False,
    divide: int | None = None,
    axes: Axes | None = None,
) -> Figure:
    """A heat map `[rows, columns]`; `signed` values are blue above zero and red below it.

    divide  draw a line before this column
    """
    axes = axes or new_axes(len(columns), len(rows))
    figure = axes.get_figure(root=True)
    assert figure is not None
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    axes.imshow(
        values,
        cmap=SIGNED if signed else WEIGHTS,
        vmin=-largest if signed else 0.0,
        vmax=largest if signed else 1.0,
        aspect="auto",
    )
    axes.set_xticks(range(len(columns)), plain_tokens(columns), rotation=60, ha="left")
    axes.set_yticks(range(len(rows)), plain_tokens(rows))
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    if divide is not None:
        axes.axvline(divide - 0.5, color="#222222", linewidth=1.0)
    axes.set_title(title, loc="left", fontsize=10)
    return figure


def new_axes(columns: int, rows: int) -> Axes:
    """Axes of a new figure with room for this many tokens."""
    from headcount.picture import Picture

    figure = Picture(figsize=(1.6 + CELL * columns, 1.4 + CELL * rows), layout="constrained")
    return figure.subplots()
