"""What attention weights say about a head, counted batch by batch: confidence and offsets.

Used while training, by the ranking and by the roles, so that each quantity has one definition.
"""

from __future__ import annotations

import torch
from torch import Tensor

REACH = 5
"""Offsets from -REACH to REACH are counted."""


def largest_weights(weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weight to an allowed key, and where it is; weights are not renormalised.

    `weights` `[batch, heads, queries, keys]`, `keys` `[batch, keys]` true where a key counts (EOS
    and padding left out). Returns two tensors `[batch, heads, queries]`.
    """
    allowed = weights.masked_fill(~keys[:, None, None, :], -1.0)
    best = allowed.max(-1)
    return best.values, best.indices


def confidence_sums(largest: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the largest weights over counted queries, and their number, per sentence (Sec. 4).

    `largest` `[batch, heads, queries]`, `queries` `[batch, queries]`. Returns `[batch, heads]` and
    `[batch]`.
    """
    return (largest * queries[:, None, :]).sum(-1), queries.sum(-1)


def offset_counts(argmax: Tensor, queries: Tensor, reach: int = REACH) -> tuple[Tensor, Tensor]:
    """How often the argmax key stands at each offset from -reach to reach (Sec. 5.1).

    `argmax` `[batch, heads, queries]` are argmax keys, `queries` `[batch, queries]` true for the
    tokens of a sentence, which stand at its front. A query counts for an offset only where that
    offset stays inside the sentence. Returns for each sentence hits `[batch, heads, offsets]` and
    possible `[batch, offsets]`.
    """
    size = queries.sum(-1)  # [batch]
    offsets = torch.arange(-reach, reach + 1, device=argmax.device)
    possible = (size[:, None] - offsets.abs()).clamp(min=0)
    inside = queries[:, None, :] & (argmax >= 0) & (argmax < size[:, None, None])
    position = torch.arange(queries.shape[1], device=argmax.device)
    # Slot 0 and the last one collect misses, so that one pass does for any number of offsets.
    slots = (argmax - position + (reach + 1)).clamp_(0, 2 * reach + 2).masked_fill_(~inside, 0)
    hits = slots.new_zeros((*argmax.shape[:2], 2 * reach + 3))
    hits.scatter_add_(2, slots, slots.new_ones(()).expand_as(slots))
    return hits[..., 1:-1], possible
