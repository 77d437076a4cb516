"""One pass over the sentences for all measures; processes share out the batches."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from headcount.data.batches import evaluation_batches
from headcount.heads import Head
from headcount.model.decoding import GREEDY, Search, beam_search
from headcount.model.recording import Recording, record
from headcount.progress import Progress
from headcount.ranking.ablation import ablation
from headcount.ranking.confidence import confidence
from headcount.ranking.evidence import Evidence, EvidenceStore, Place, places_of
from headcount.ranking.gradient import gradient
from headcount.ranking.lrp.audit import MEASURED, AuditRow, audit_rows, stations
from headcount.ranking.lrp.options import LrpOptions
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.relevance import head_relevance
from headcount.ranking.sentences import Sentences, padded
from headcount.run import Run
from headcount.training.distribution import Workers

MEASURES = ("lrp", "confidence", "ablation", "gradient")
ON_PREFIX = frozenset({"lrp", "confidence"})
ON_REFERENCE = frozenset({"ablation", "gradient"})

BATCH_TOKENS = 500
"""Padded source tokens of a batch: little padding, and of what LRP records much stays in caches."""


@dataclass(frozen=True)
class MeasureSettings:
    """What to measure, where, and what the decoder reads."""

    measures: tuple[str, ...]
    sites: tuple[str, ...]
    lrp: LrpOptions = field(default_factory=LrpOptions)
    prefix: str = "own"
    search: Search = GREEDY


@dataclass(frozen=True)
class Measured:
    """Evidence of each measure, and where the relevance of LRP went."""

    heads: list[Head]
    evidence: dict[str, Evidence]
    audit: list[AuditRow]
    steps: int
    unusable: dict[str, int]


def measure(
    run: Run, sentences: Sentences, settings: MeasureSettings, workers: Workers, progress: Progress
) -> Measured:
    """Measure heads on the sentences; every process comes to the same result."""
    batches = evaluation_batches(sentences.lengths, BATCH_TOKENS)
    mine = workers.share(batches)
    pass_ = _Pass(run, sentences, settings)
    was_training = run.model.training
    run.model.eval()
    try:
        for done, indices in enumerate(mine):
            progress("Measuring heads", done, len(mine))
            pass_.batch(indices.tolist())
        progress("Measuring heads", len(mine), len(mine))
    finally:
        run.model.train(was_training)
    return pass_.result(workers)


class _Pass:
    """Evidence while batches come in."""

    def __init__(self, run: Run, sentences: Sentences, settings: MeasureSettings) -> None:
        self.run, self.model = run, run.model
        self.sentences, self.settings = sentences, settings
        self.device = run.model.output_weight.device
        self.heads = run.model.heads.heads(settings.sites)
        self.places: list[Place] = places_of(run.model, settings.sites)
        self.store = EvidenceStore(len(sentences), self.heads, settings.measures)
        self.propagation = Propagation(run.model, settings.lrp, source="enc" in settings.sites)
        self.steps = 0
        self.unusable = torch.zeros(len(self.places), dtype=torch.float64)
        self.stations = stations(run.model, self.propagation.source)
        self.audit_sums = torch.zeros(len(MEASURED), len(self.stations), dtype=torch.float64)
        self.largest = torch.zeros(len(self.stations), dtype=torch.float64)

    def batch(self, rows: list[int]) -> None:
        """Measure the sentences `rows`."""
        wanted = set(self.settings.measures)
        if wanted & ON_PREFIX:
            self._on_prefix(rows)
        if wanted & ON_REFERENCE:
            self._on_reference(rows)

    def _on_prefix(self, rows: list[int]) -> None:
        """LRP and confidence: from one forward pass of sentences in the order of falling steps."""
        targets = self._targets(rows)
        order = sorted(range(len(rows)), key=lambda i: -len(targets[i]))
        rows, targets = [rows[i] for i in order], [targets[i] for i in order]
        source = self._source(rows)
        ids = self.run.target_tokenizer
        prefix = padded([[ids.start, *tokens] for tokens in targets], ids.pad, self.device)
        lengths = [len(tokens) for tokens in targets]
        if "lrp" in self.settings.measures:
            recording = self.propagation.record(source, prefix)
            self._lrp(rows, recording, [length + 1 for length in lengths])
        else:
            with torch.no_grad(), record(self.model, {"weights"}) as recording:
                memory, mask = self.model.encode(source)
                self.model.decode(prefix, memory, mask)
        if "confidence" in self.settings.measures:
            eos = self.run.source_tokenizer.eos
            found = confidence(recording, source, lengths, self.places, eos)
            self.store.put("confidence", rows, *found)

    def _lrp(self, rows: list[int], recording: Recording, steps: list[int]) -> None:
        propagated = self.propagation.propagate(recording, steps)
        normalise = self.settings.lrp.normalise
        found = head_relevance(propagated, self.places, steps, normalise)
        self.store.put("lrp", rows, found.sums, found.counts)
        self.steps += sum(steps)
        self.unusable += found.unusable.double().cpu()
        table = found.audit.table()
        self.audit_sums = self.audit_sums + table[:-1]
        self.largest = torch.maximum(self.largest, table[-1])

    def _on_reference(self, rows: list[int]) -> None:
        """Ablation and gradient: what happens to the loss of the references."""
        references = self.sentences.references
        assert references is not None  # checked where the settings are made
        ids = self.run.target_tokenizer
        targets = [references[i] for i in rows]
        source = self._source(rows)
        target_input = padded([[ids.start, *tokens] for tokens in targets], ids.pad, self.device)
        labels = padded([[*tokens, ids.eos] for tokens in targets], ids.pad, self.device)
        counts = (labels != ids.pad).sum(1, keepdim=True)
        batch = (source, target_input, labels)
        if "ablation" in self.settings.measures:
            self.store.put("ablation", rows, ablation(self.model, *batch, self.heads), counts)
        if "gradient" in self.settings.measures:
            self.store.put("gradient", rows, gradient(self.model, *batch, self.places), counts)

    def _source(self, rows: list[int]) -> Tensor:
        ids = self.run.source_tokenizer
        sources = [[*self.sentences.sources[i], ids.eos] for i in rows]
        return padded(sources, ids.pad, self.device)

    def _targets(self, rows: list[int]) -> list[list[int]]:
        """What the decoder reads after START: a translation without its EOS.

        A translation that was cut off at the search's limit has no EOS step; its last token is
        then the last prediction and is not read.
        """
        if self.settings.prefix == "reference":
            references = self.sentences.references
            assert references is not None
            return [references[i] for i in rows]
        search, ids = self.settings.search, self.run.target_tokenizer
        found = beam_search(self.model, self._source(rows), search, start=ids.start, eos=ids.eos)
        positions = self.model.config.max_positions
        limits = [search.limit(len(self.sentences.sources[i]) + 1, positions) for i in rows]
        return [best[0].tokens[: n - 1] for best, n in zip(found, limits, strict=True)]

    def result(self, workers: Workers) -> Measured:
        """What all processes found together."""
        names = self.stations
        largest = torch.zeros(workers.world, len(names), dtype=torch.float64)
        largest[workers.rank] = self.largest
        steps = torch.tensor([float(self.steps)], dtype=torch.float64)
        for tensor in (self.store.table, self.audit_sums, largest, steps, self.unusable):
            tensor.copy_(workers.sum(tensor.to(workers.device)))
        table = torch.cat([self.audit_sums, largest.amax(0, keepdim=True)])
        places = [f"{site}.{layer}" for site, layer in self.places]
        unusable = dict(zip(places, map(int, self.unusable.tolist()), strict=True))
        lrp = "lrp" in self.settings.measures
        return Measured(
            heads=self.heads,
            evidence=self.store.evidence(),
            audit=audit_rows(names, table, int(steps)) if lrp else [],
            steps=int(steps),
            unusable=unusable if lrp else {},
        )
