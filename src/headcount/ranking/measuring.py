"""One pass over the sentences for all measures; processes share the batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from headcount.data.batches import evaluation_batches, padded
from headcount.data.cleaning import spread
from headcount.data.tokenizer import Tokenizer
from headcount.distribution import Workers
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.heads import Head
from headcount.model.decoding import GREEDY, Search, beam_search
from headcount.model.recording import record
from headcount.progress import Progress
from headcount.ranking.evidence import (
    Evidence,
    EvidenceStore,
    LossBatch,
    Place,
    PrefixBatch,
    WholeCorpus,
    attentions_of,
)
from headcount.ranking.lrp.audit import AuditRow
from headcount.ranking.lrp.relevance import RelevanceSums
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measures import LRP, LRP_SIGNED, MEASURES, Measure
from headcount.run import Run
from headcount.training.masking import Questions

Lines = Path | str | Sequence[str]

REASONS = {
    "empty": "without a token",
    "too_long": "longer than the model's positions",
    "unknown": "of unknown tokens only",
}


@dataclass(frozen=True)
class Sentences:
    """Usable sentences as token ids without EOS, their references, and how many were left out."""

    sources: list[list[int]]
    references: list[list[int]] | None
    reference_lines: list[str] | None
    skipped: dict[str, int]

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def lengths(self) -> list[int]:
        """Source tokens of each sentence, EOS not counted."""
        return [len(tokens) for tokens in self.sources]


def load_sentences(
    run: Run, source: Lines, reference: Lines | None = None, limit: int | None = None
) -> Sentences:
    """Read sentences (a file with one per line, or a list) and leave out what cannot be used.

    `limit` takes that many of the lines that are not empty, evenly spread.
    """
    lines = _lines(source, "Give source sentences, one per line.")
    targets = None if reference is None else _lines(reference, "Give references, one per line.")
    if targets is not None and len(targets) != len(lines):
        raise UserError(
            f"{len(lines)} source sentences, but {len(targets)} references.",
            "Both must have the same number of lines.",
        )
    if limit is not None:
        if limit < 1:
            raise UserError(f"{limit} sentences are too few.", "Ask for at least one.")
        chosen = spread([i for i, line in enumerate(lines) if line.strip()], limit)
        lines = [lines[i] for i in chosen]
        targets = None if targets is None else [targets[i] for i in chosen]
    return _usable(run, lines, targets)


def _usable(run: Run, lines: list[str], targets: list[str] | None) -> Sentences:
    longest = run.config.model.max_positions - 1  # EOS, or START, takes one
    sources = run.source_tokenizer.encode_batch(lines)
    references = None if targets is None else _references(run, targets)
    skipped: Counter[str] = Counter()
    kept = []
    for i, tokens in enumerate(sources):
        target = [] if references is None else references[i]
        if not tokens or (references is not None and not target):
            skipped["empty"] += 1
        elif max(len(tokens), len(target)) > longest:
            skipped["too_long"] += 1
        elif _nothing_known(run.source_tokenizer, tokens):
            skipped["unknown"] += 1
        else:
            kept.append(i)
    if not kept:
        counts = ", ".join(f"{skipped[key]} {REASONS[key]}" for key in REASONS if skipped[key])
        raise UserError(
            f"None of the {len(lines)} sentences can be used ({counts}).",
            "Give sentences in the language that the model translates from.",
        )
    return Sentences(
        [sources[i] for i in kept],
        None if references is None else [references[i] for i in kept],
        None if targets is None else [targets[i] for i in kept],
        {key: skipped[key] for key in REASONS},
    )


def _references(run: Run, lines: list[str]) -> list[list[int]]:
    """References as tokens; for a model that classifies, the number of a class on each line."""
    config = run.config.model
    if config.decoder_layers:
        return run.target_tokenizer.encode_batch(lines)
    if not config.classes:
        raise UserError(
            f"{run.folder} is an encoder alone: it has no translations to compare with.",
            "Leave --ref out: the hidden tokens themselves are what it has to predict.",
        )
    unknown = [line for line in lines if line.strip() not in config.classes]
    if unknown:
        raise UserError(
            f"'{unknown[0].strip()[:60]}' is no class of {run.folder}.",
            f"Write one of {', '.join(config.classes[:8])} on each line of --ref.",
        )
    return [[config.classes.index(line.strip())] for line in lines]


def _nothing_known(tokenizer: Tokenizer, tokens: list[int]) -> bool:
    """Whether there is nothing but unknown tokens and marks of word starts."""
    return tokenizer.unk in tokens and not tokenizer.decode(tokens)


def _lines(source: Lines, remedy: str) -> list[str]:
    if not isinstance(source, str | Path):
        lines, name = list(source), "The list of sentences"
    else:
        lines, name = list(read_lines(Path(source))), str(source)
    if not lines:
        raise UserError(f"{name} is empty.", remedy)
    return lines


BATCH_TOKENS = 500
"""Padded source tokens per batch: little padding, and most of what LRP records fits in caches."""


@dataclass(frozen=True)
class MeasureSettings:
    """What to measure, where, and what the decoder reads; `seed` of the tokens that are hidden."""

    measures: tuple[str, ...]
    sites: tuple[str, ...]
    lrp: LrpOptions = field(default_factory=LrpOptions)
    prefix: str = "own"
    search: Search = GREEDY
    seed: int = 1


@dataclass(frozen=True)
class Measured:
    """What each measure gave, and where the relevance of LRP went.

    `evidence` of the measures that are means over sentences; `values` `[heads]` of all.
    """

    heads: list[Head]
    evidence: dict[str, Evidence]
    values: dict[str, Tensor]
    audit: list[AuditRow]
    steps: int
    unusable: dict[str, int]


def measure(
    run: Run, sentences: Sentences, settings: MeasureSettings, workers: Workers, progress: Progress
) -> Measured:
    """Measure heads on the sentences; every process gets the same result."""
    batches = evaluation_batches(sentences.lengths, BATCH_TOKENS)
    mine = workers.share(batches)
    measuring = _Measuring(run, sentences, settings)
    was_training = run.model.training
    run.model.eval()
    try:
        for done, indices in enumerate(mine):
            progress("Measuring heads", done, len(mine))
            measuring.batch(indices.tolist())
        progress("Measuring heads", len(mine), len(mine))
        return measuring.result(workers, progress)
    finally:
        run.model.train(was_training)


class _Measuring:
    """Evidence while batches come in."""

    def __init__(self, run: Run, sentences: Sentences, settings: MeasureSettings) -> None:
        self.run, self.model = run, run.model
        self.sentences, self.settings = sentences, settings
        self.device = run.model.output_weight.device
        self.heads = run.model.heads.heads(settings.sites)
        self.attentions: list[Place] = attentions_of(run.model, settings.sites)
        wanted = [MEASURES[name] for name in settings.measures]
        self.on_prefix = [m for m in wanted if m.on_prefix]
        self.on_loss = [m for m in wanted if m.on_loss]
        self.on_corpus = [m for m in wanted if m.on_corpus]
        of_sentences = [m.name for m in (*self.on_prefix, *self.on_loss)]
        self.store = EvidenceStore(len(sentences), self.heads, of_sentences)
        self.relevance: RelevanceSums | None = None
        self.alone = not run.config.model.decoder_layers
        self.questions = Questions(run, settings.seed)
        if {LRP, LRP_SIGNED} & set(settings.measures):
            self.relevance = RelevanceSums(run.model, settings.lrp, self.attentions)

    def batch(self, rows: list[int]) -> None:
        """Measure the sentences `rows`."""
        if self.on_prefix and self.alone:
            self._on_sentences(rows)
        elif self.on_prefix:
            self._on_prefix(rows)
        if self.on_loss:
            self._on_loss(rows)

    def _on_prefix(self, rows: list[int]) -> None:
        """From one forward pass of the sentences, those with the most generation steps first."""
        targets = self._targets(rows)
        order = sorted(range(len(rows)), key=lambda i: -len(targets[i]))
        rows, targets = [rows[i] for i in order], [targets[i] for i in order]
        source = self._source(rows)
        ids = self.run.target_tokenizer
        prefix = padded([[ids.start, *tokens] for tokens in targets], ids.pad, self.device)
        self._recorded(rows, source, prefix, list(map(len, targets)), self.on_prefix)

    def _on_sentences(self, rows: list[int]) -> None:
        """Of an encoder alone: of the sentences as they are, and of what it is asked about them."""
        seen = [m for m in self.on_prefix if not m.predicts]
        if seen:
            source = self._source(rows)
            self._recorded(rows, source, None, [0] * len(rows), seen)
        predicted = [m for m in self.on_prefix if m.predicts]
        if predicted:
            source, labels = self._asked(rows)
            asked = labels != self.model.target_pad
            counts = asked.sum(1)
            order = counts.argsort(descending=True, stable=True)
            # The positions that are asked about, in order, before the others.
            positions = (~asked).int().argsort(dim=1, stable=True)[:, : int(counts.max())]
            self._recorded(
                [rows[i] for i in order.tolist()], source[order], source[order],
                counts[order].tolist(), predicted, positions[order],
            )  # fmt: skip

    def _recorded(
        self,
        rows: list[int],
        source: Tensor,
        prefix: Tensor | None,
        tokens: list[int],
        measures: list[Measure],
        positions: Tensor | None = None,
    ) -> None:
        """Measure one recorded pass; without a prefix, of the encoder only."""
        records = frozenset[str]().union(*(m.records for m in measures))
        with torch.no_grad(), record(self.model, records) as recording:
            memory, mask = self.model.encode(source)
            if prefix is not None:
                self.model.decode(prefix, memory, mask)
        tokenizer = self.run.source_tokenizer
        skipped = len(self.run.target_tokenizer.before)
        frame = (len(tokenizer.before), len(tokenizer.after), skipped)
        prefix = source[:, :0] if prefix is None else prefix
        batch = PrefixBatch(
            self.model, source, prefix, tokens, recording, self.attentions,
            tokenizer.eos, self.relevance, frame, positions,
        )  # fmt: skip
        for measure in measures:
            assert measure.on_prefix is not None
            own = replace(batch, attentions=self._places(measure))
            self.store.put(measure.name, rows, self._columns(measure), *measure.on_prefix(own))

    def _asked(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """What an encoder alone reads, and what it has to predict."""
        references = self.sentences.references
        classes = None if references is None else [references[i][0] for i in rows]
        return self.questions.about(self._source(rows), rows, classes)

    def _on_loss(self, rows: list[int]) -> None:
        """From what happens to the loss of the references, or of what an encoder is asked."""
        if self.alone:
            source, labels = self._asked(rows)
            target_input = source
        else:
            source, target_input, labels = self._referenced(rows)
        for measure in self.on_loss:
            assert measure.on_loss is not None
            columns, places = self._columns(measure), self._places(measure)
            heads = [self.heads[column] for column in columns]
            batch = LossBatch(self.model, source, target_input, labels, heads, places)
            self.store.put(measure.name, rows, columns, *measure.on_loss(batch))

    def _referenced(self, rows: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Sources, what the decoder reads, and labels."""
        references = self.sentences.references
        assert references is not None  # checked when the settings were created
        ids = self.run.target_tokenizer
        targets = [references[i] for i in rows]
        target_input = padded([[ids.start, *tokens] for tokens in targets], ids.pad, self.device)
        labels = padded([[*tokens, ids.eos] for tokens in targets], ids.pad, self.device)
        return self._source(rows), target_input, labels

    def _places(self, measure: Measure) -> list[Place]:
        """Where a measure is defined, of what is to be measured."""
        return [place for place in self.attentions if place[0] in measure.sites]

    def _columns(self, measure: Measure) -> Tensor:
        """The numbers of the heads for which a measure is defined."""
        return torch.tensor([i for i, h in enumerate(self.heads) if h.site in measure.sites])

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
        beams = beam_search(self.model, self._source(rows), search, start=ids.start, eos=ids.eos)
        positions = self.model.config.max_positions
        limits = [search.limit(len(self.sentences.sources[i]) + 1, positions) for i in rows]
        return [best[0].tokens[: n - 1] for best, n in zip(beams, limits, strict=True)]

    def result(self, workers: Workers, progress: Progress) -> Measured:
        """What all processes measured together."""
        self.store.table.copy_(workers.sum(self.store.table.to(workers.device)))
        evidence = self.store.evidence()
        values = {name: each.values() for name, each in evidence.items()}
        for measure in self.on_corpus:
            assert measure.on_corpus is not None
            columns = self._columns(measure)
            heads = [self.heads[column] for column in columns]
            corpus = WholeCorpus(
                self.run, self.sentences, heads, self.settings.search, workers, progress
            )
            values[measure.name] = torch.full((len(self.heads),), math.nan, dtype=torch.float64)
            values[measure.name][columns] = measure.on_corpus(corpus).double()
        if self.relevance is None:
            return Measured(self.heads, evidence, values, [], 0, {})
        report = self.relevance.report(workers)
        return Measured(self.heads, evidence, values, report.audit, report.steps, report.unusable)
