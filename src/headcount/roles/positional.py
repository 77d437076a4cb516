"""Positional heads: the argmax key stands at one fixed offset (Sec. 5.1).

The share of an offset is taken over the queries for which it stays inside the sentence: else a
sentence of five tokens could never reach 90 % for offset -1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from headcount.model.attention_statistics import offset_counts
from headcount.roles.uncertainty import divide

REACH = 5
THRESHOLD = 0.90


class PositionalCounts:
    """How often each head's argmax is at each offset, by group of sentences.

    hits: [groups, heads, offsets]; possible: [groups, offsets], the queries that an offset has;
    lengths: [longest + 1], sentences by their number of tokens.
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
        self.possible = torch.zeros((groups, shape[-1]), dtype=torch.int64, device=device)
        self.lengths = torch.zeros(longest + 1, dtype=torch.int64, device=device)

    def add(self, heads: slice, places: Tensor, queries: Tensor, groups: Tensor) -> None:
        """Count the argmax keys `[batch, heads, queries]` of one layer's heads.

        `queries` `[batch, queries]` are true for the tokens of a sentence, which stand at its
        front; `groups` `[batch]` are the groups of the sentences.
        """
        hits, _ = offset_counts(places, queries, self.reach)
        self.hits[:, heads].index_add_(0, groups, hits)

    def add_queries(self, queries: Tensor, groups: Tensor) -> None:
        """Count a batch's queries, once for all layers."""
        nowhere = torch.full_like(queries, -1, dtype=torch.int64)[:, None]
        _, possible = offset_counts(nowhere, queries, self.reach)
        self.possible.index_add_(0, groups, possible)
        length = queries.sum(-1)
        self.lengths.index_add_(0, length, torch.ones_like(length))

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.hits, self.possible, self.lengths]


def chance_shares(lengths: np.ndarray, reach: int = REACH, causal: bool = False) -> np.ndarray:
    """The share of each offset for a head whose argmax is any token it sees with equal chance.

    `lengths[n]` is the number of sentences of n tokens; under `causal` a query sees itself and
    what stands before it. Returns `[offsets]`.
    """
    tokens = np.arange(len(lengths))
    offsets = np.arange(-reach, reach + 1)
    possible = np.clip(tokens - np.abs(offsets)[:, None], 0, None)  # queries: [offsets, lengths]
    if causal:
        # the query at place i sees i + 1 tokens; an offset of -k has the queries from place k on
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.maximum(tokens[1:], 1))])
        before = harmonic[np.clip(-offsets, 0, len(harmonic) - 1)]
        hits = np.where(offsets[:, None] > 0, 0.0, np.clip(harmonic - before[:, None], 0, None))
    else:
        hits = possible / np.maximum(tokens, 1)
    return divide((hits * lengths).sum(-1), (possible * lengths).sum(-1))
