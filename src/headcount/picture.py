"""A figure that notebooks show as it is, with or without pyplot."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

DPI = 110


class Picture(Figure):
    """A matplotlib figure; `picture.savefig("a.svg")` writes it."""

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=DPI, bbox_inches="tight", facecolor="white")
        return buffer.getvalue()
