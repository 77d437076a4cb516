"""What every head looks at in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headcount.errors import UserError
from headcount.heads import Head
from headcount.loaded.pictures import plot_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headcount.loaded.viewer import Viewer
    from headcount.run import Run

END = "</s>"


@dataclass(frozen=True)
class Attention:
    """Attention weights of every head on a sentence and its translation.

    `attention["enc.4.1"]` is `[queries, keys]`: row i says how much token i looks at every token.

    source_tokens  pieces of the source and EOS: what `enc` reads, and `cross` looks at
    target_tokens  START and the pieces of the translation: what the decoder reads
    """

    text: str
    translation: str
    source_tokens: list[str]
    target_tokens: list[str]
    weights: Mapping[Head, np.ndarray] = field(repr=False)
    run: Run | None = field(default=None, repr=False)

    @property
    def heads(self) -> list[Head]:
        """Every head that the model has."""
        return list(self.weights)

    def __getitem__(self, head: Head | str) -> np.ndarray:
        head = Head.parse(head) if isinstance(head, str) else head
        if head not in self.weights:
            raise UserError(f"The model has no head {head}.", "See `attention.heads`.")
        return self.weights[head]

    def tokens(self, head: Head | str) -> tuple[list[str], list[str]]:
        """What the rows and the columns of a head's weights are."""
        site = str(head).split(".")[0]
        queries = self.source_tokens if site == "enc" else self.target_tokens
        keys = self.target_tokens if site == "dec" else self.source_tokens
        return queries, keys

    def confidence(self) -> dict[Head, float]:
        """How much each head looks at one token: mean largest weight, EOS left out (Sec. 4)."""
        means = {}
        for head, weights in self.weights.items():
            rows, columns = (len(t) - (t[-1] == END) for t in self.tokens(head))
            means[head] = float(weights[:rows, :columns].max(1).mean())
        return means

    def plot(self, head: Head | str, axes: Axes | None = None) -> Figure:
        """A head's weights as a map: rows look at columns."""
        weights = self[head]
        queries, keys = self.tokens(head)
        return plot_matrix(weights, queries, keys, title=str(head), axes=axes)

    def show(self) -> Viewer:
        """All heads, to click through in a notebook; `.save("page.html")` anywhere else."""
        from headcount.loaded.viewer import Viewer

        return Viewer.of(self)
