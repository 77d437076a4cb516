"""What a measure receives, and what it returns: enough for its value and for a bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcount.distribution import Workers
from headcount.heads import Head
from headcount.model.decoding import Search
from headcount.model.recording import Recording
from headcount.model.transformer import Transformer
from headcount.progress import Progress
from headcount.run import Run

if TYPE_CHECKING:
    from headcount.ranking.lrp.relevance import RelevanceSums
    from headcount.ranking.measuring import Sentences

Place = tuple[str, int]

Sums = tuple[Tensor, Tensor]
"""Sums over the steps or tokens of each sentence, `[batch, heads]`, and how many there were,
`[batch, heads]` or `[batch, 1]`."""


@dataclass(frozen=True)
class PrefixBatch:
    """A recorded forward pass of sentences with what the decoder read.

    source      `[batch, source]`, ends in EOS and padding
    prefix      `[batch, steps]`, START and target tokens, padding
    tokens      number of target tokens of each sentence, falling; generation steps are one more
    recording   what the pass left at named places (`model/recording.py`)
    attentions  the attentions whose heads are measured, in the order of the head table; for a
                measure of units and blocks (`Measure.sites`) also what these are in
    source_eos  the source vocabulary's EOS
    relevance   LRP of this ranking
    frame       how many tokens at the front and at the end of the source, and at the front of the
                target, are not text (language codes, `[CLS]`)
    positions   of an encoder alone: where it predicts something, `[batch, steps]`,
                of which each sentence has `steps`
    """

    model: Transformer
    source: Tensor
    prefix: Tensor
    tokens: list[int]
    recording: Recording
    attentions: list[Place]
    source_eos: int
    relevance: RelevanceSums | None
    frame: tuple[int, int, int] = (0, 0, 0)
    positions: Tensor | None = None

    @property
    def steps(self) -> list[int]:
        """How many predictions each sentence has: its generation steps."""
        return [count + (self.positions is None) for count in self.tokens]


@dataclass(frozen=True)
class LossBatch:
    """Sentences with what has to be predicted, for measures based on the loss.

    `source` `[batch, source]`, `target_input` and `labels` `[batch, target]`, padded: references,
    or what an encoder alone is asked (`training/masking.py`).
    """

    model: Transformer
    source: Tensor
    target_input: Tensor
    labels: Tensor
    heads: list[Head]
    attentions: list[Place]

    @property
    def counts(self) -> Tensor:
        """Target tokens of each sentence, EOS counted: `[batch, 1]`."""
        return (self.labels != self.model.target_pad).sum(1, keepdim=True)


@dataclass(frozen=True)
class WholeCorpus:
    """All sentences at once, for measures that are not means over sentences."""

    run: Run
    sentences: Sentences
    heads: list[Head]
    search: Search
    workers: Workers
    progress: Progress


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

    def put(
        self, measure: str, rows: Sequence[int], columns: Tensor, sums: Tensor, counts: Tensor
    ) -> None:
        """The evidence of the sentences `rows` and some heads: `[rows, columns]`.

        Counts may be `[rows, 1]`. Heads for which a measure is not defined have none.
        """
        place = self.table[self.measures.index(measure)]
        index = torch.as_tensor(rows)[:, None]
        place[0, index, columns] = sums.double().cpu()
        place[1, index, columns] = counts.double().cpu().expand(sums.shape)

    def evidence(self) -> dict[str, Evidence]:
        """The evidence of each measure."""
        return {
            measure: Evidence(sums, counts)
            for measure, (sums, counts) in zip(self.measures, self.table, strict=True)
        }


def attentions_of(model: Transformer, sites: Sequence[str]) -> list[Place]:
    """The attentions at these sites that have heads, in the order of the head table.

    At other sites: networks that have units, layers that have blocks.
    """
    return [
        (site, layer)
        for site in sites
        for layer, heads in enumerate(model.heads.layers[site])
        if heads
    ]
