"""`headcount.rank`: every measure of every head, from a run and sentences (Sec. 4)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.data.fetch import sha256_of
from headcount.errors import UserError
from headcount.files import owned, read_json, write_json
from headcount.heads import SITES, Head, HeadTable, parse_sites
from headcount.model.decoding import Search
from headcount.progress import Progress, silent
from headcount.ranking.agreement import REPLICATES, Agreement, agreement
from headcount.ranking.bleu import bleu_losses
from headcount.ranking.evidence import Evidence
from headcount.ranking.lrp.audit import AuditRow
from headcount.ranking.lrp.options import LrpOptions
from headcount.ranking.measuring import MEASURES, ON_REFERENCE, Measured, MeasureSettings, measure
from headcount.ranking.sentences import Lines, load_sentences
from headcount.registry import name_list
from headcount.run import WEIGHTS, Run, load_run
from headcount.training.distribution import Workers, connect

RANKING = "ranking.json"
AGREEMENT = "agreement.json"
PREFIXES = ("own", "reference")


class Ranking(HeadTable):
    """The head table of one ranking, with what stands behind its columns.

    In every column more means that the head matters more:

    lrp            relevance, normalised over the heads of a layer
    confidence     mean of the largest attention weight
    ablation       rise of the loss, nats a target token, without the head
    ablation_bleu  BLEU points lost without the head
    gradient       mean |d loss / d gate|, nats a target token
    random         random numbers: the floor for every comparison
    """

    def __init__(self, heads: Iterable[Head]) -> None:
        super().__init__(heads)
        self.about: dict[str, Any] = {}
        self.evidence: dict[str, Evidence] = {}
        self.audit: list[AuditRow] = []

    def agreement(self, replicates: int = REPLICATES, seed: int = 1) -> list[Agreement]:
        """Rank correlations between all columns, with intervals over sentences."""
        fixed = {
            name: torch.tensor(
                [float(column.get(head, math.nan)) for head in self.heads], dtype=torch.float64
            )
            for name, column in self.columns.items()
            if name not in self.evidence
        }
        return agreement(self.evidence, fixed, self.heads, replicates, seed)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {**self.about, "audit": [asdict(row) for row in self.audit], "heads": self.rows()}

    def save_to(self, run: Run) -> None:
        """Add the columns to the run's head table and write `ranking.json` beside it.

        Heads of sites that were not ranked keep what they had. `ranking.json` says of every column
        and site how its numbers came about, and keeps the last audit.
        """
        table = run.head_table()
        ranked = set(self.heads)
        for name, column in self.columns.items():
            old = table.columns.get(name, {})
            table.add(name, {h: v for h, v in old.items() if h not in ranked} | column)
        table.save(run.analysis)
        before = saved_ranking(run)
        origins = before.get("columns", {})
        origin = {**self.about, "weights": weights_hash(run)}
        for name in self.columns:
            origins[name] = origins.get(name, {}) | dict.fromkeys(self.about["sites"], origin)
        audit: dict[str, Any] = {"audit": [asdict(row) for row in self.audit], "audit_of": origin}
        if not self.audit:  # the last one stays, with what it is the audit of
            audit = {name: before.get(name) for name in audit}
        write_json(run.analysis / RANKING, {**self.about, **audit, "columns": origins})


def saved_ranking(run: Run) -> dict[str, Any]:
    """What `ranking.json` of a run says; nothing where there is none."""
    path = run.analysis / RANKING
    return read_json(path) if path.is_file() else {}


def weights_hash(run: Run) -> str | None:
    """Tells one state of a run's weights on the disk from another."""
    path = run.folder / WEIGHTS
    return sha256_of(path) if path.is_file() else None


def rank(
    run: Run | Path | str,
    source: Lines,
    reference: Lines | None = None,
    *,
    by: str | Sequence[str] | None = None,
    sites: str | Sequence[str] = SITES,
    rule: str = LrpOptions.rule,
    layer_norm: str = LrpOptions.layer_norm,
    bias: str = LrpOptions.bias,
    attention: str = LrpOptions.attention,
    normalise: str = LrpOptions.normalise,
    epsilon: float = LrpOptions.epsilon,
    prefix: str = "own",
    beam: int = 1,
    bleu: bool = False,
    sentences: int | None = None,
    seed: int = 1,
    save: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> Ranking:
    """Rank the heads of a run on some sentences.

    source     a file with one sentence per line, or a list of sentences; `reference` likewise
    by         measures, `"lrp,confidence"` or a list, of `lrp`, `confidence`, `ablation` and
               `gradient`; the last two need references. Default: all that there is text for
    sites      which attention, `"enc,cross"` or a list
    rule       for LRP, as are `layer_norm`, `bias`, `attention`, `normalise` and `epsilon`: see
               `LrpOptions`
    prefix     what the decoder reads for LRP and confidence: the model's `own` translation,
               decoded with `beam`, or the `reference`
    bleu       also BLEU lost without each head: one translation of all sentences per head
    sentences  how many to use, spread evenly over the data; all by default
    seed       of the `random` column
    save       write the run's head table and `analysis/ranking.json`

    Under torchrun every process comes to the same result and the first one writes it, unless
    `workers` says who is to share the work.
    """
    measures = _measures(by, reference is not None, bleu)
    if prefix not in PREFIXES:
        raise UserError(f"There is no prefix '{prefix}'.", f"Choose {' or '.join(PREFIXES)}.")
    if prefix == "reference" and reference is None:
        raise UserError("The prefix is to be the reference, but there is none.", "Give --ref.")
    options = LrpOptions(rule, layer_norm, bias, attention, normalise, epsilon)
    sites = parse_sites(sites)
    with connect(workers) as workers:
        run = run if isinstance(run, Run) else load_run(run, workers.device)
        if not run.model.heads.heads(sites):
            raise UserError(
                f"{run.folder} has no head left at {','.join(sites)}.", "Choose other --sites."
            )
        ready = load_sentences(run, source, reference, sentences)
        search = Search.of(run.config.search, beam=beam, nbest=1)
        settings = MeasureSettings(measures, sites, options, prefix, search)
        report = progress if progress and workers.leader else silent
        measured = measure(run, ready, settings, workers, report)
        ranking = _table(measured, seed)
        if bleu:
            lost = bleu_losses(run, ready, measured.heads, search, workers, report)
            ranking.add("ablation_bleu", _column(measured.heads, lost))
        ranking.about = {
            "measures": list(measures),
            "sites": list(sites),
            "sentences": len(ready),
            "skipped": ready.skipped,
            "steps": measured.steps,
            "unusable_steps": measured.unusable,
            "prefix": prefix,
            "beam": beam,
            "seed": seed,
            "lrp": asdict(options),
        }
        if save and workers.leader:
            with owned(run.analysis, patience=60):
                ranking.save_to(run)
        workers.wait()
        return ranking


def random_scores(heads: Iterable[Head], seed: int) -> dict[Head, float]:
    """A number in [0, 1) for each head: the same in a pruned model, or with fewer sites."""
    scores = {}
    for head in heads:
        digest = hashlib.blake2b(f"{seed} {head}".encode(), digest_size=6).digest()
        scores[head] = int.from_bytes(digest, "big") / 2**48
    return scores


def _table(measured: Measured, seed: int) -> Ranking:
    ranking = Ranking(measured.heads)
    ranking.evidence, ranking.audit = measured.evidence, measured.audit
    for name, evidence in measured.evidence.items():
        ranking.add(name, _column(measured.heads, evidence.values()))
    ranking.add("random", random_scores(measured.heads, seed))
    return ranking


def _column(heads: Sequence[Head], values: Tensor) -> dict[Head, float]:
    """Heads of which a measure says nothing stay empty."""
    pairs = zip(heads, values.tolist(), strict=True)
    return {head: value for head, value in pairs if not math.isnan(value)}


def _measures(by: str | Sequence[str] | None, referenced: bool, bleu: bool) -> tuple[str, ...]:
    if by is None:
        by = [name for name in MEASURES if referenced or name not in ON_REFERENCE]
    by = name_list(by)
    unknown = [name for name in by if name not in MEASURES]
    if unknown or not by:
        raise UserError(
            f"There is no measure '{','.join(unknown)}'.", f"Choose among {', '.join(MEASURES)}."
        )
    needing = [name for name in by if name in ON_REFERENCE] + ["--bleu"] * bleu
    if needing and not referenced:
        raise UserError(
            f"{needing[0]} needs reference translations.", "Give them with --ref, or leave it out."
        )
    return tuple(name for name in MEASURES if name in by)
