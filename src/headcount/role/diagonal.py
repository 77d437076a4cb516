"""Decoder-encoder heads: how far from the diagonal of the aligned sentences they look.

The decoder state that produces target token t of m (both counted from 0, START's state produces
the first) has its place on the diagonal at source token floor((t + 1/2) * n / m) of n: the two
sentences laid over each other at equal length. The offset of a head is the distance of its argmax
from there. EOS is left out on both sides: as a key, and as a token to be produced.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import divide
from headcount.model.attention import REACH
from headcount.role.kind import RoleCounts, Scores, Setting, SiteBatch
from headcount.role.positional import OFFSET_NAMES, OffsetRole

MEAN_OFFSET, MEAN_DISTANCE = "mean offset", "mean distance"


def diagonal(source_lengths: Tensor, target_lengths: Tensor, steps: int) -> Tensor:
    """The source token on the diagonal of every target token, `[batch, steps]`, in integers.

    Lengths are `[batch]`, EOS not counted; places beyond a target's length mean nothing.
    """
    step = torch.arange(steps, device=source_lengths.device)
    return (2 * step + 1) * source_lengths[:, None] // (2 * target_lengths[:, None].clamp(min=1))


class DiagonalCounts(RoleCounts):
    """How often each head's argmax is at each offset from the diagonal.

    distances: [heads, 2], sums of the offset and of its absolute value over all queries
    inside: [longest + 1, offsets], queries for which an offset is inside the source, by the
    source's number of tokens
    """

    names = OFFSET_NAMES

    def __init__(self, setting: Setting) -> None:
        self.allocate(setting)
        device = setting.device
        self.distances = torch.zeros((setting.heads, 2), dtype=torch.int64, device=device)
        shape = (setting.longest + 1, len(self.names))
        self.inside = torch.zeros(shape, dtype=torch.int64, device=device)

    def begin(self, batch: SiteBatch) -> None:
        """Compute the diagonals, and count queries and expected hits by chance."""
        sources, targets = batch.keys.sum(-1), batch.queries.sum(-1)
        self.aligned = diagonal(sources, targets, batch.queries.shape[1])
        self.totals.index_add_(0, batch.groups, targets[:, None].expand(-1, len(self.names)))
        offsets = torch.arange(-REACH, REACH + 1, device=sources.device)
        position = self.aligned[..., None] + offsets  # [batch, queries, offsets]
        inside = (position >= 0) & (position < sources[:, None, None]) & batch.queries[..., None]
        self.inside.index_add_(0, sources, inside.sum(1))

    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads."""
        counted = batch.queries[:, None, :]
        offset = (argmax - self.aligned[:, None, :]).masked_fill(~counted, 0)
        for i, wanted in enumerate(range(-REACH, REACH + 1)):
            hits = ((offset == wanted) & counted).sum(-1)  # [batch, heads]
            self.hits[:, heads, i].index_add_(0, batch.groups, hits)
        self.distances[heads, 0] += offset.sum((0, 2))
        self.distances[heads, 1] += offset.abs().sum((0, 2))

    def baselines(self) -> np.ndarray:
        """The share of each offset for a head whose argmax is any source token by chance."""
        inside = self.inside.cpu().numpy()
        tokens = np.maximum(np.arange(len(inside)), 1)[:, None]
        return divide((inside / tokens).sum(0), np.asarray(int(self.totals[:, 0].sum())))

    def more(self) -> dict[str, list[float]]:
        """The mean offset from the diagonal, and the mean distance."""
        total = int(self.totals[:, 0].sum())
        if not total:
            return {}
        means = [[number / total for number in row] for row in self.distances.tolist()]
        return {
            MEAN_OFFSET: [mean for mean, _ in means],
            MEAN_DISTANCE: [mean for _, mean in means],
        }

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*super().tensors, self.distances, self.inside]


class Diagonal(OffsetRole):
    """Decoder-encoder heads that walk along the source as the translation grows."""

    name = "diagonal"
    help = "looks along the diagonal of source and translation"
    sites = ("cross",)
    colour = "#882255"
    letter = "D"

    def counts(self, setting: Setting) -> DiagonalCounts:
        """Empty counts for one site."""
        return DiagonalCounts(setting)

    def sentence(self, name: str) -> str:
        """Where the head looks, in words."""
        offset = int(name)
        if not offset:
            return "looks at the source token on the diagonal"
        number = "one token" if abs(offset) == 1 else f"{abs(offset)} tokens"
        return f"looks {number} {'before' if offset < 0 else 'after'} the diagonal"

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The best offset, its share, and the mean distance."""
        cells = super().columns(scores)
        if MEAN_DISTANCE in scores:
            cells["diagonal_distance"] = scores[MEAN_DISTANCE].value
        return cells
