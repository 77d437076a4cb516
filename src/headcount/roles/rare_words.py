"""Heads that point at the least frequent tokens of a sentence (Sec. 5.3).

Only sentences count whose least frequent token is not among the 500 most frequent ones of the
training data. Tokens are BPE tokens, EOS left out. Where several tokens of a sentence are equally
rare, each of them is the rarest; the two rarest are all tokens at most as frequent as the second
in the order of frequency, so that a rare token which stands twice fills both places.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

FREQUENT = 500
# A head of this role sends at least half of its queries to one of the two rarest tokens, as the
# weakest of the paper's does, and twice as many as chance would: in sentences of four tokens half
# of them is nothing special.
THRESHOLD = 0.50
RATIO = 2.0


@dataclass(frozen=True)
class Frequencies:
    """How often each token stands in the training data, and which are the most frequent.

    counts: [vocabulary] int64; frequent: [vocabulary] bool.
    """

    counts: Tensor
    frequent: Tensor

    @classmethod
    def of(
        cls, counts: np.ndarray, special: Collection[int], frequent: int = FREQUENT
    ) -> Frequencies:
        """From counts by token id; special tokens are no tokens of a sentence and not ranked."""
        counts = np.asarray(counts, dtype=np.int64)
        real = counts.copy()
        real[list(special)] = -1
        order = np.argsort(-real, kind="stable")[: min(frequent, len(counts) - len(special))]
        mask = np.zeros(len(counts), dtype=bool)
        mask[order] = True
        return cls(torch.from_numpy(counts), torch.from_numpy(mask))

    def to(self, device: torch.device | str) -> Frequencies:
        """The same on another device."""
        return Frequencies(self.counts.to(device), self.frequent.to(device))


@dataclass(frozen=True)
class RareTokens:
    """The rare tokens of a batch.

    queries: [batch, length], tokens of the sentences that count
    rarest, two_rarest: [batch, length], the tokens that a head may point at
    """

    queries: Tensor
    rarest: Tensor
    two_rarest: Tensor


def rare_tokens(ids: Tensor, real: Tensor, frequencies: Frequencies) -> RareTokens:
    """The rarest tokens of each sentence: `ids` and `real` are `[batch, length]`."""
    most = torch.iinfo(torch.int64).max
    counts = frequencies.counts[ids].masked_fill(~real, most)  # [batch, length]
    smallest = counts.topk(min(2, counts.shape[1]), dim=1, largest=False).values
    rarest = (counts == smallest[:, :1]) & real
    two_rarest = (counts <= smallest[:, -1:]) & real
    counted = (rarest & ~frequencies.frequent[ids]).any(1, keepdim=True)  # [batch, 1]
    return RareTokens(real & counted, rarest & counted, two_rarest & counted)


class RareWordCounts:
    """How often each head points at the rarest token and at one of the two rarest.

    hits: [groups, heads, 2]; queries: [groups]; candidates: [2], summed over queries' sentences, so
    that candidates / queries is what a head reaches that points anywhere with equal chance.
    """

    def __init__(self, groups: int, heads: int, device: torch.device | str = "cpu") -> None:
        self.hits = torch.zeros((groups, heads, 2), dtype=torch.int64, device=device)
        self.queries = torch.zeros(groups, dtype=torch.int64, device=device)
        self.candidates = torch.zeros(2, dtype=torch.int64, device=device)
        self.sentences = torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, heads: slice, places: Tensor, rare: RareTokens, groups: Tensor) -> None:
        """Count the argmax keys `[batch, heads, queries]` of one layer's heads."""
        for i, wanted in enumerate((rare.rarest, rare.two_rarest)):
            found = wanted[:, None, :].expand_as(places).gather(2, places)
            hits = (found & rare.queries[:, None, :]).sum(-1)  # [batch, heads]
            self.hits[:, heads, i].index_add_(0, groups, hits)

    def add_queries(self, rare: RareTokens, groups: Tensor) -> None:
        """Count a batch's queries, once for all layers."""
        self.queries.index_add_(0, groups, rare.queries.sum(-1))
        self.candidates[0] += rare.rarest.sum()
        self.candidates[1] += rare.two_rarest.sum()
        self.sentences += rare.queries.any(1).sum()

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.hits, self.queries, self.candidates, self.sentences]
