"""One pass over the data: what every head looks at, counted on the fly.

Attention is taken from the recording of one batch, counted and let go; what is kept are integers
by group of sentences. Batches do not depend on the number of processes, and integers add up in any
order, so that processes that share the batches come to the very same counts as one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.heads import Head, HeadLayout
from headcount.model.attention_statistics import confidence_sums, largest_weights
from headcount.roles.cross import DiagonalCounts, diagonal
from headcount.roles.positional import PositionalCounts
from headcount.roles.rare_words import Frequencies, RareWordCounts, rare_tokens
from headcount.roles.sentences import SentenceBatch
from headcount.roles.syntactic import SyntacticCounts
from headcount.roles.uncertainty import GROUPS

FIXED_POINT = 2.0**32


@dataclass(frozen=True)
class SiteHeads:
    """The heads of one site in the order of every count's head axis."""

    site: str
    heads: list[Head]
    layers: dict[int, slice]

    @classmethod
    def of(cls, layout: HeadLayout, site: str) -> SiteHeads:
        """All heads of a site, layer by layer; layers without heads have no slice."""
        layers: dict[int, slice] = {}
        first = 0
        for layer, indices in enumerate(layout.layers.get(site, ())):
            if indices:
                layers[layer] = slice(first, first + len(indices))
                first += len(indices)
        return cls(site, layout.heads([site]), layers)


class ConfidenceCounts:
    """The sum of the largest weights of each head, and of the queries behind it (Sec. 4).

    Sums are kept as integers of 2^-32, so that they too add up in any order.
    """

    def __init__(self, heads: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(heads, dtype=torch.int64, device=device)
        self.queries = torch.zeros(1, dtype=torch.int64, device=device)

    def add(self, heads: slice, largest: Tensor, queries: Tensor) -> None:
        """Add the largest weights `[batch, heads, queries]` of one layer's heads."""
        sums, _ = confidence_sums(largest, queries)  # [batch, heads]
        self.sums[heads] += (sums.double() * FIXED_POINT).round().long().sum(0)

    def add_queries(self, queries: Tensor) -> None:
        """Count a batch's queries, once for all layers."""
        self.queries += queries.sum()

    def values(self) -> list[float | None]:
        """The confidence of each head."""
        number = int(self.queries)
        if not number:
            return [None] * len(self.sums)
        return [int(total) / FIXED_POINT / number for total in self.sums]

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.sums, self.queries]


class EncoderCounts:
    """What encoder self-attention looks at: offsets, dependencies, rare words (Sec. 5).

    `longest` is the largest number of tokens that a sentence has.
    """

    def __init__(
        self,
        heads: SiteHeads,
        longest: int,
        relations: int,
        frequencies: Frequencies | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.heads = heads
        count = len(heads.heads)
        self.frequencies = None if frequencies is None else frequencies.to(device)
        self.confidence = ConfidenceCounts(count, device)
        self.positional = PositionalCounts(GROUPS, count, longest, device=device)
        self.syntactic = SyntacticCounts(GROUPS, relations, count, device)
        self.rare = RareWordCounts(GROUPS, count, device)

    def add(self, batch: SentenceBatch, weights: Mapping[int, Tensor]) -> None:
        """Count a batch; `weights[layer]` is `[batch, heads, length, length]`."""
        real, groups = batch.real, batch.groups
        rare = None
        if self.frequencies is not None:
            rare = rare_tokens(batch.source, real, self.frequencies)
            self.rare.add_queries(rare, groups)
        self.confidence.add_queries(real)
        self.positional.add_queries(real, groups)
        for layer, heads in self.heads.layers.items():
            largest, places = largest_weights(weights[layer], real)
            self.confidence.add(heads, largest, real)
            self.positional.add(heads, places, real, groups)
            if rare is not None:
                self.rare.add(heads, places, rare, groups)
            self.syntactic.add(heads, weights[layer], places, batch.words, batch.arcs, groups)

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        parts = (self.confidence, self.positional, self.syntactic, self.rare)
        return [tensor for part in parts for tensor in part.tensors]


class DecoderCounts:
    """What decoder self-attention looks at: offsets. START is no token of the sentence."""

    def __init__(self, heads: SiteHeads, longest: int, device: torch.device | str = "cpu") -> None:
        self.heads = heads
        self.confidence = ConfidenceCounts(len(heads.heads), device)
        self.positional = PositionalCounts(GROUPS, len(heads.heads), longest, device=device)

    def add(self, weights: Mapping[int, Tensor], real: Tensor, groups: Tensor) -> None:
        """Count a batch; `weights[layer]` is `[batch, heads, 1 + target, 1 + target]`.

        `real` `[batch, target]` is true for the tokens after START.
        """
        if not real.any():
            return
        self.confidence.add_queries(real)
        self.positional.add_queries(real, groups)
        for layer, heads in self.heads.layers.items():
            largest, places = largest_weights(weights[layer][:, :, 1:, 1:], real)
            self.confidence.add(heads, largest, real)
            self.positional.add(heads, places, real, groups)

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*self.confidence.tensors, *self.positional.tensors]


class CrossCounts:
    """What decoder-encoder attention looks at: the offset from the diagonal."""

    def __init__(self, heads: SiteHeads, longest: int, device: torch.device | str = "cpu") -> None:
        self.heads = heads
        self.confidence = ConfidenceCounts(len(heads.heads), device)
        self.diagonal = DiagonalCounts(GROUPS, len(heads.heads), longest, device=device)

    def add(
        self, weights: Mapping[int, Tensor], source_real: Tensor, real: Tensor, groups: Tensor
    ) -> None:
        """Count a batch; `weights[layer]` is `[batch, heads, 1 + target, source]`.

        Query t produces target token t, so that the last query, which produces EOS, is left out.
        `real` `[batch, target]` is true for tokens, `source_real` `[batch, source]` likewise.
        """
        if not real.any():
            return
        sources = source_real.sum(-1)
        aligned = diagonal(sources, real.sum(-1), real.shape[1])
        self.confidence.add_queries(real)
        self.diagonal.add_queries(real, aligned, sources, groups)
        for layer, heads in self.heads.layers.items():
            largest, places = largest_weights(weights[layer][:, :, :-1], source_real)
            self.confidence.add(heads, largest, real)
            self.diagonal.add(heads, places, real, aligned, groups)

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*self.confidence.tensors, *self.diagonal.tensors]


Counts = EncoderCounts | DecoderCounts | CrossCounts


def padded_targets(
    targets: Sequence[Sequence[int]], *, pad: int, start: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Decoder input `[batch, 1 + target]`: START + tokens; and the tokens `[batch, target]`."""
    longest = max(map(len, targets), default=0)
    rows = [[start, *tokens, *[pad] * (longest - len(tokens))] for tokens in targets]
    real = [[i < len(tokens) for i in range(longest)] for tokens in targets]
    ids = torch.tensor(rows, dtype=torch.int64, device=device)
    mask = torch.tensor(real, dtype=torch.bool, device=device).reshape(len(rows), longest)
    return ids, mask
