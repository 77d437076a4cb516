"""Where the dependent of a relation stands, seen from its head (the figure of Sec. 5.2).

The positional baseline of a relation always looks at its most frequent offset: its accuracy is the
share of that offset. Seen from the other end every offset changes its sign, so that both directions
have the same baseline.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from headcount.bootstrap import divide

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 10  # offsets on either side of a plot


class RelativePositions:
    """Counts of offsets (dependent minus head, in words) of each relation, by group."""

    def __init__(self, groups: int, relations: int) -> None:
        self.groups, self.relations = groups, relations
        self._counts: list[dict[int, np.ndarray]] = [{} for _ in range(relations)]

    def add(self, group: int, relation: int, offset: int) -> None:
        """Count one instance."""
        counts = self._counts[relation]
        if offset not in counts:
            counts[offset] = np.zeros(self.groups, dtype=np.int32)
        counts[offset][group] += 1

    def table(self, relation: int) -> tuple[list[int], np.ndarray]:
        """The offsets of a relation in order, and their counts `[groups, offsets]`."""
        counts = self._counts[relation]
        offsets = sorted(counts)
        columns = [counts[offset] for offset in offsets]
        if not columns:
            return [], np.zeros((self.groups, 0), dtype=np.int64)
        return offsets, np.stack(columns, 1).astype(np.int64)

    def distribution(self, relation: int) -> dict[int, int]:
        """How often each offset occurs."""
        offsets, counts = self.table(relation)
        return dict(zip(offsets, counts.sum(0).tolist(), strict=True))


def most_frequent(distribution: Mapping[int, int]) -> int | None:
    """The most frequent offset, the nearest one among equals; None where there is none."""
    if not distribution:
        return None
    return max(distribution, key=lambda offset: (distribution[offset], -abs(offset), offset))


def baseline_shares(counts: np.ndarray) -> np.ndarray:
    """Accuracy of the positional baseline: `[..., offsets]` counts to `[...]` shares."""
    if counts.shape[-1] == 0:
        return np.full(counts.shape[:-1], np.nan)
    return divide(counts.max(-1), counts.sum(-1))


def distributions_csv(distributions: Mapping[str, Mapping[int, int]]) -> str:
    """All distributions as one table: relation, offset, count, share."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["relation", "offset", "count", "share"])
    for relation, counts in distributions.items():
        total = sum(counts.values())
        for offset in sorted(counts):
            writer.writerow([relation, offset, counts[offset], f"{counts[offset] / total:.6f}"])
    return buffer.getvalue()


def draw_distributions(
    distributions: Mapping[str, Mapping[int, int]], relations: Sequence[str] | None = None
) -> Figure:
    """The figure of Sec. 5.2: for each relation, the share of each offset of the dependent."""
    from matplotlib.figure import Figure

    chosen = [r for r in relations or distributions if distributions.get(r)]
    figure = Figure(figsize=(2.6 * max(len(chosen), 1), 2.4), layout="constrained")
    if not chosen:
        return figure
    plots = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    shown = range(-SHOWN, SHOWN + 1)
    for plot, relation in zip(plots, chosen, strict=True):
        counts = distributions[relation]
        total = sum(counts.values())
        plot.bar(shown, [counts.get(offset, 0) / total for offset in shown], color="#4c72b0")
        plot.set_title(f"{relation} ({total})", fontsize=10)
        plot.set_xlabel("offset of the dependent")
    plots[0].set_ylabel("share")
    return figure
