"""`headcount.rank`: every measure of every head, from a run and sentences (Sec. 4).

How the columns of a head table were computed is kept beside it, in `analysis/measures.json`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.data.fetch import sha256_of
from headcount.distribution import Workers, connect
from headcount.errors import UserError
from headcount.files import owned, read_json, write_json
from headcount.heads import ALL_SITES, SITES, Head, HeadTable, kind_of, parse_sites
from headcount.model.decoding import Search
from headcount.progress import Progress, silent
from headcount.ranking.agreement import REPLICATES, Agreement, agreement
from headcount.ranking.evidence import Evidence
from headcount.ranking.lrp.audit import AuditRow
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measures import BLEU, MEASURES, RANDOM, check_sites
from headcount.ranking.measuring import Lines, Measured, MeasureSettings, load_sentences, measure
from headcount.registry import name_list
from headcount.run import WEIGHTS, Run, load_run

AGREEMENT = "agreement.json"
PREFIXES = ("own", "reference")


class Ranking(HeadTable):
    """The head table of one ranking, with the evidence for its columns.

    In every column more means that the head matters more; `MEASURES` says what each of them is.
    `random` has random numbers, as a baseline for comparisons.
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
        """Everything except the evidence, as JSON values."""
        return {**self.about, "audit": [asdict(row) for row in self.audit], "heads": self.rows()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Ranking:
        """Read `to_json`, what `headcount rank --json` prints."""
        rows = {Head.parse(row["head"]): row for row in value["heads"]}
        ranking = cls(rows)
        ranking.about = {k: v for k, v in value.items() if k not in ("audit", "heads")}
        ranking.audit = [AuditRow(**row) for row in value["audit"]]
        ranking.add_rows(rows)
        return ranking

    def save_to(self, run: Run) -> None:
        """Add the columns to the run's head table, and how they were measured to `measures.json`.

        Heads of sites that were not ranked keep what they had.
        """
        table = run.head_table(self.heads)
        ranked = set(self.heads)
        for name, column in self.columns.items():
            old = table.columns.get(name, {})
            table.add(name, {h: v for h, v in old.items() if h not in ranked} | column)
        table.save(run.analysis)
        provenance = Provenance.load(run.analysis) or Provenance()
        origin = {**self.about, "weights": weights_hash(run)}
        provenance.add(self.columns, origin, self.audit)
        provenance.save(run.analysis)


def weights_hash(run: Run) -> str | None:
    """A hash of the run's weights on disk."""
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
    """Measure how much each head matters.

    source     a file with one sentence per line, or a list of sentences; `reference` likewise (for
               an encoder that classifies: the names of classes, else it is asked for its own)
    by         measures, `"lrp,confidence"` or a list: names of `MEASURES`, some of which need
               references. Default: all that there is text for, but for slow ones
    sites      which attention, `"enc,cross"` or a list; also `enc_ff`, `dec_ff` (blocks of units)
               and `enc_layers`, `dec_layers` (whole blocks)
    rule       for LRP, as are `layer_norm`, `bias`, `attention`, `normalise` and `epsilon`: see
               `LrpOptions`
    prefix     what the decoder reads for LRP and confidence: the model's `own` translation,
               decoded with `beam`, or the `reference`
    bleu       also `ablation_bleu`: one translation of all sentences per head
    sentences  how many to use, spread evenly over the data; all by default
    seed       of the `random` column, and of the tokens that are hidden from an encoder alone
    save       add the columns to the run's head table, and how they were measured to
               `analysis/measures.json`

    Under torchrun every process gets the same result and the first one writes it, unless `workers`
    says which processes share the work.
    """
    sites = parse_sites(sites, ALL_SITES, "site")
    if prefix not in PREFIXES:
        raise UserError(f"There is no prefix '{prefix}'.", f"Choose {' or '.join(PREFIXES)}.")
    if prefix == "reference" and reference is None:
        raise UserError("The prefix should be the reference, but there is none.", "Give --ref.")
    options = LrpOptions(rule, layer_norm, bias, attention, normalise, epsilon)
    with connect(workers) as workers:
        run = run if isinstance(run, Run) else load_run(run, workers.device)
        measures = _measures(by, reference is not None, bleu, sites, run.config.model)
        if not run.model.heads.heads(sites):
            raise UserError(
                f"{run.folder} has no {kind_of(sites[0])} left at {','.join(sites)}.",
                "Choose other --sites.",
            )
        ready = load_sentences(run, source, reference, sentences)
        search = Search.of(run.config.search, beam=beam, nbest=1)
        settings = MeasureSettings(measures, sites, options, prefix, search, seed)
        report = progress if progress and workers.leader else silent
        measured = measure(run, ready, settings, workers, report)
        ranking = _table(measured, seed)
        ranking.about = {
            "measures": list(measures),
            "sites": list(sites),
            "sentences": len(ready),
            "skipped": ready.skipped,
            "steps": measured.steps,
            "asked": asked_for(run.config.model),
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


def asked_for(model: ModelConfig) -> str:
    """What a model's predictions are about, in words."""
    if model.decoder_layers:
        return "generation steps"
    return "classes" if model.classes else "hidden tokens"


def random_scores(heads: Iterable[Head], seed: int) -> dict[Head, float]:
    """A number in [0, 1) for each head: the same in a pruned model, and with fewer sites."""
    scores = {}
    for head in heads:
        digest = hashlib.blake2b(f"{seed} {head}".encode(), digest_size=6).digest()
        scores[head] = int.from_bytes(digest, "big") / 2**48
    return scores


def _table(measured: Measured, seed: int) -> Ranking:
    ranking = Ranking(measured.heads)
    ranking.evidence, ranking.audit = measured.evidence, measured.audit
    for name, values in measured.values.items():
        ranking.add(name, _column(measured.heads, values))
    ranking.add(RANDOM, random_scores(measured.heads, seed))
    return ranking


def _column(heads: Sequence[Head], values: Tensor) -> dict[Head, float]:
    """Heads for which a measure has no value stay empty."""
    pairs = zip(heads, values.tolist(), strict=True)
    return {head: value for head, value in pairs if not math.isnan(value)}


def _measures(
    by: str | Sequence[str] | None,
    referenced: bool,
    bleu: bool,
    sites: Sequence[str],
    model: ModelConfig,
) -> tuple[str, ...]:
    """The measures that are asked for, in the order of the registry.

    An encoder alone needs no references: it is asked for tokens or classes of the text itself.
    """
    referenced = referenced or not model.decoder_layers
    if by is None:
        entries = [m for m in MEASURES.values() if m.default and set(m.sites) & set(sites)]
        entries = [m for m in entries if model.predicts or not m.needs_logits]
        names = {m.name for m in entries if referenced or not m.needs_references}
    else:
        names = {MEASURES.find(name).name for name in name_list(by) or [""]}
    names |= {BLEU} if bleu else set()
    wanted = tuple(name for name in MEASURES if name in names)
    for name in wanted:
        if not set(MEASURES[name].sites) & set(sites):
            check_sites(name, sites)
    lacking = [name for name in wanted if MEASURES[name].needs_references and not referenced]
    if lacking:
        raise UserError(
            f"{lacking[0]} needs reference translations.", "Give them with --ref, or leave it out."
        )
    return wanted


MEASURES_FILE = "measures.json"
OLD_NAME = "ranking.json"
"""What earlier versions called it."""

Origin = Mapping[str, Any]
"""Options, sentences and weights behind a column at one site: `Ranking.about` and `weights`."""


@dataclass
class Provenance:
    """How every measured column was obtained.

    columns   by column and site, the ranking that measured it
    audit     where the relevance of the last LRP went, and `audit_of` which ranking that was
    """

    columns: dict[str, dict[str, Origin]] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    audit_of: Origin | None = None

    def add(self, columns: Iterable[str], origin: Origin, audit: list[AuditRow]) -> None:
        """A new ranking: its columns at its sites, and its audit where it has one."""
        for name in columns:
            self.columns[name] = self.columns.get(name, {}) | dict.fromkeys(origin["sites"], origin)
        if audit:
            self.audit, self.audit_of = audit, origin

    def weights(self, column: str, sites: Iterable[str]) -> set[str | None]:
        """Hashes of the weights that a column was measured with at these sites."""
        origins = self.columns.get(column, {})
        return {origins[site]["weights"] for site in sites if site in origins}

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        audit = [asdict(row) for row in self.audit]
        return {"columns": self.columns, "audit": audit, "audit_of": self.audit_of}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Provenance:
        """Read `to_json`, also as earlier versions wrote it."""
        try:
            audit = [AuditRow(**row) for row in value.get("audit") or []]
            columns = {name: dict(sites) for name, sites in value.get("columns", {}).items()}
            return cls(columns, audit, value.get("audit_of"))
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"{where} cannot be read as a record of measures ({error!r}).",
                "Run headcount rank again.",
            ) from error

    def save(self, analysis: Path) -> None:
        """Write it into an analysis folder, in place of an earlier version's file."""
        write_json(analysis / MEASURES_FILE, self.to_json())
        (analysis / OLD_NAME).unlink(missing_ok=True)

    @classmethod
    def load(cls, analysis: Path) -> Provenance | None:
        """What an analysis folder has; None where no head was ever measured."""
        for name in (MEASURES_FILE, OLD_NAME):
            if (analysis / name).is_file():
                return cls.from_json(read_json(analysis / name), str(analysis / name))
        return None
