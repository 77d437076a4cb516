"""Decoder-encoder heads: how far from the diagonal of the aligned sentences they look.

The decoder state that produces target token t of m (both counted from 0, START's state produces
the first) has its place on the diagonal at source token floor((t + 1/2) * n / m) of n: the two
sentences laid over each other at equal length. The offset of a head is the distance of its argmax
from there. EOS is left out on both sides: as a key, and as a token to be produced.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headcount.roles.positional import REACH
from headcount.roles.uncertainty import divide


def diagonal(source_lengths: Tensor, target_lengths: Tensor, steps: int) -> Tensor:
    """The source token on the diagonal of every target token, `[batch, steps]`, in integers.

    Lengths are `[batch]`, EOS not counted; places beyond a target's length mean nothing.
    """
    step = torch.arange(steps, device=source_lengths.device)
    return (2 * step + 1) * source_lengths[:, None] // (2 * target_lengths[:, None].clamp(min=1))


class DiagonalCounts:
    """How often each head's argmax is at each offset from the diagonal.

    hits: [groups, heads, offsets], from -reach to reach; queries: [groups]; distances: [heads, 2],
    sums of the offset and of its absolute value over all queries; inside: [longest + 1, offsets],
    queries for which an offset is inside the source, by the source's number of tokens.
    """

    def __init__(
        self,
        groups: int,
        heads: int,
        longest: int,
        reach: int = REACH,
        device: torch.device | str = "cpu",
    ) -> None:
        self.reach = reach
        shape = (groups, heads, 2 * reach + 1)
        self.hits = torch.zeros(shape, dtype=torch.int64, device=device)
        self.queries = torch.zeros(groups, dtype=torch.int64, device=device)
        self.distances = torch.zeros((heads, 2), dtype=torch.int64, device=device)
        self.inside = torch.zeros((longest + 1, shape[-1]), dtype=torch.int64, device=device)

    def add(
        self, heads: slice, places: Tensor, queries: Tensor, aligned: Tensor, groups: Tensor
    ) -> None:
        """Count argmax keys `[batch, heads, queries]` against the diagonal `[batch, queries]`."""
        counted = queries[:, None, :]
        offset = (places - aligned[:, None, :]).masked_fill(~counted, 0)
        for i, wanted in enumerate(range(-self.reach, self.reach + 1)):
            hits = ((offset == wanted) & counted).sum(-1)  # [batch, heads]
            self.hits[:, heads, i].index_add_(0, groups, hits)
        self.distances[heads, 0] += offset.sum((0, 2))
        self.distances[heads, 1] += offset.abs().sum((0, 2))

    def add_queries(
        self, queries: Tensor, aligned: Tensor, sources: Tensor, groups: Tensor
    ) -> None:
        """Count a batch's queries, once for all layers; `sources` `[batch]` are source lengths."""
        self.queries.index_add_(0, groups, queries.sum(-1))
        offsets = torch.arange(-self.reach, self.reach + 1, device=aligned.device)
        place = aligned[..., None] + offsets  # [batch, queries, offsets]
        inside = (place >= 0) & (place < sources[:, None, None]) & queries[..., None]
        self.inside.index_add_(0, sources, inside.sum(1))

    def chance_shares(self) -> np.ndarray:
        """The share of each offset for a head whose argmax is any source token by chance."""
        inside = self.inside.cpu().numpy()
        tokens = np.maximum(np.arange(len(inside)), 1)[:, None]
        return divide((inside / tokens).sum(0), np.asarray(int(self.queries.sum())))

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.hits, self.queries, self.distances, self.inside]
