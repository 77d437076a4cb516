"""What a measure found in each sentence: enough for its value and for a bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.model.transformer import Transformer

Place = tuple[str, int]


@dataclass(frozen=True)
class Evidence:
    """Sums over the steps or tokens of each sentence, and how many there were.

    Both `[sentences, heads]`, float64; a head's value is one sum over all sentences divided by the
    other.
    """

    sums: Tensor
    counts: Tensor

    def values(self) -> Tensor:
        """The measure of each head, `[heads]`, NaN where nothing was counted."""
        return self.sums.sum(0) / self.counts.sum(0)

    def resampled(self, draws: Tensor) -> Tensor:
        """Values when sentence j is drawn `draws[i, j]` times: `[replicates, heads]`."""
        return (draws @ self.sums) / (draws @ self.counts)


class EvidenceStore:
    """Evidence of several measures while batches come in, and its sum over processes."""

    def __init__(self, sentences: int, heads: Sequence[Head], measures: Sequence[str]) -> None:
        self.measures = list(measures)
        # Every sentence is measured by one process and zero elsewhere, so sums are exact.
        self.table = torch.zeros(len(self.measures), 2, sentences, len(heads), dtype=torch.float64)

    def put(self, measure: str, rows: Sequence[int], sums: Tensor, counts: Tensor) -> None:
        """The evidence of the sentences `rows`: `[rows, heads]`; counts may be `[rows, 1]`."""
        place = self.table[self.measures.index(measure)]
        index = torch.as_tensor(rows)
        place[0, index] = sums.double().cpu()
        place[1, index] = counts.double().cpu().expand(sums.shape)

    def evidence(self) -> dict[str, Evidence]:
        """The evidence of each measure."""
        return {
            measure: Evidence(sums, counts)
            for measure, (sums, counts) in zip(self.measures, self.table, strict=True)
        }


def places_of(model: Transformer, sites: Sequence[str]) -> list[Place]:
    """The attentions at these sites that have heads, in the order of the head table."""
    return [
        (site, layer)
        for site in sites
        for layer, heads in enumerate(model.heads.layers[site])
        if heads
    ]
