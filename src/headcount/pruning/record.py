"""`pruning.json`: how a run was pruned, from which run, and with what result.

It is written when a pruning begins and again when it has ended. So an interrupted pruning can be
recognised, and `--resume` checks that baseline and settings are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from headcount.bench.costs import Costs
from headcount.data.corpus_folder import corpus_of_run
from headcount.data.encoding import text_fingerprint
from headcount.data.fetch import sha256_of
from headcount.errors import UserError
from headcount.files import parsing, read_json, require_file, write_json
from headcount.heads import kind_of
from headcount.model.arithmetic import count_parameters
from headcount.pruning.calibration import Calibration
from headcount.pruning.methods import canonical
from headcount.pruning.settings import PruneSettings
from headcount.run import PRUNING, WEIGHTS, Run, resolve_run
from headcount.yaml_reading import plain_reason

Record = dict[str, Any]

Number = Annotated[float, Field(allow_inf_nan=False)]


class _Baseline(BaseModel):
    """What a record says of the run that was pruned."""

    run: str
    weights: str
    heads: dict[str, list[list[int]]]
    parameters: Annotated[int, Field(gt=0)]


class _Decided(BaseModel):
    undecided: list[str]
    binary: dict[str, Number]
    gated: dict[str, Number] = {}


class _Progress(BaseModel):
    update: Annotated[int, Field(ge=0)]


class _Settings(BaseModel):
    sites: list[str]
    keep: int | dict[str, int] | None = None
    penalty: Number | None = None
    seed: int = 1


class _Teacher(BaseModel):
    run: str
    weights: str


class _Speed(BaseModel):
    engine: str
    batch: int
    beam: int
    asked: Number
    promised: Number
    measured: Number


class _Begun(BaseModel):
    """What everyone who reads a record relies on; it holds more."""

    finished: bool
    method: str
    settings: _Settings
    train: str
    baseline: _Baseline
    before: dict[str, Number] = {}
    teacher: _Teacher | None = None
    costs: Costs | None = None
    calibrated: Calibration | None = None
    speed: _Speed | None = None


class _Pruned(_Begun):
    """The same where the pruning has come to its result."""

    decided: _Decided
    after: dict[str, Number]
    kept: list[str]
    closed: list[str]
    heads: dict[str, list[list[int]]]
    parameters: Annotated[int, Field(gt=0)]
    progress: _Progress


def new_record(
    baseline: Run,
    train: Path,
    settings: PruneSettings,
    teacher: Path | None = None,
    costs: Costs | None = None,
) -> Record:
    """What is known before the first update."""
    return {
        "finished": False,
        "method": settings.method.name,
        "settings": settings.model_dump(mode="json"),
        "train": str(train),
        "train_text": _fingerprints(baseline, train),
        "baseline": {
            "run": str(baseline.folder),
            "weights": _hash(baseline.folder),
            "heads": baseline.model.heads.to_json(),
            "parameters": count_parameters(baseline.model),
        },
        "teacher": None if teacher is None else {"run": str(teacher), "weights": _hash(teacher)},
        "costs": None if costs is None else costs.to_json(),
        "calibrated": None,
    }


def write_record(folder: Path, record: Record) -> None:
    """Keep a record in its folder."""
    write_json(folder / PRUNING, record)


def open_record(out: Path, record: Record, resume: bool) -> Record:
    """The record of the folder: `record` if it is new, the stored one if it is resumed."""
    if out.exists() and not _is_new(out):
        if not resume:
            what = "already exists" if out.is_dir() else "is a file"
            raise UserError(
                f"{out} {what}.", "Choose another --out, or add --resume to go on with a pruning."
            )
        return same_record(out, record)
    write_record(out, record)
    return record


@contextmanager
def forgotten_if_refused(out: Path, new: bool) -> Iterator[None]:
    """Remove a new record, and its folder if that is empty then, where bad input ends the work."""
    try:
        yield
    except UserError:
        if new:
            (out / PRUNING).unlink(missing_ok=True)
            with suppress(OSError):
                out.rmdir()
        raise


def read_record(folder: Path) -> Record:
    """The record of a pruned run, finished or not."""
    path = folder / PRUNING
    if not path.is_file():
        raise UserError(f"{folder} was not made by `headcount prune`.", "Choose another --out.")
    record: Record = read_json(path)
    with parsing(path, "Prune again into another --out."):
        kind = _Pruned if "after" in record or record.get("finished") else _Begun
        try:
            kind.model_validate(record)
        except ValidationError as error:
            first = error.errors()[0]
            name = ".".join(map(str, first["loc"]))
            raise ValueError(f"{name}: {plain_reason(first)}") from error
    return record


def is_begun(folder: Path) -> bool:
    """Whether a pruning into this folder has begun."""
    return (folder / PRUNING).is_file()


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a pruning that has ended."""
    path = folder / PRUNING
    if not path.is_file():
        return False
    with parsing(path, "Prune again into another --out."):
        return bool(read_json(path)["finished"])


SLOWER = 0.05
"""A model is clearly slower than was asked for if it misses by more than this share."""


def speed_remarks(record: Record) -> list[str]:
    """Whether a pruning to a target in time has clearly missed it."""
    speed, costs = record.get("speed"), record.get("costs")
    if not speed or not costs or speed["measured"] >= (1 - SLOWER) * speed["asked"]:
        return []
    return [
        f"The pruned run was measured to be {speed['measured']:.2f} times as fast, but"
        f" {speed['asked']:g} was asked for and {speed['promised']:.2f} promised by its price list:"
        " other work on the machine disturbs either figure, and prices fit only roughly (half of"
        f" everything: {costs['error']:+.0%}). Time both runs again on an idle machine with"
        " `headcount bench`."
    ]


def remarks_on(record: Record) -> list[str]:
    """Remarks on a finished pruning that change what its result means."""
    remarks = speed_remarks(record)
    decided, settings = record["decided"], record["settings"]
    if decided["undecided"]:
        before = f" Before that: {quality(decided['gated'])}." if "gated" in decided else ""
        remarks.append(
            "Gates that were neither open nor closed when they became binary:"
            f" {', '.join(decided['undecided'])}.{before} After it: {quality(decided['binary'])}."
            " Longer training (--updates) decides more gates."
        )
    if not record["closed"] and settings["keep"] is None:
        kinds = " or ".join(dict.fromkeys(kind_of(site) for site in settings["sites"]))
        remedy = " Raise --penalty or --updates, or say with --keep how many stay."
        remarks.append(
            f"No {kinds} was removed: all {len(record['kept'])} at {','.join(settings['sites'])}"
            f" are still open.{'' if settings.get('speedup') else remedy}"
        )
    return remarks


def quality(scores: dict[str, float]) -> str:
    """Loss and BLEU on the dev set, in words."""
    bleu = f", greedy dev BLEU {scores['dev_bleu']:.2f}" if "dev_bleu" in scores else ""
    return f"dev loss {scores['dev_loss']:.4f}{bleu}"


def same_record(out: Path, now: Record) -> Record:
    """The record of a folder, whose data and settings must be those of `now`."""
    before = read_record(out)
    if before["baseline"]["weights"] != now["baseline"]["weights"]:
        raise UserError(
            f"{out} was begun from {before['baseline']['run']} with other weights than"
            f" {now['baseline']['run']} has now.",
            "Choose another --out.",
        )
    taught = before.get("teacher") or now["teacher"]
    if now["teacher"] and taught["weights"] != now["teacher"]["weights"]:
        raise UserError(
            f"{out} was begun with the teacher {taught['run']} as it was then, not with"
            f" {now['teacher']['run']} as it is.",
            "Choose another --out.",
        )
    if before.get("train_text", now["train_text"]) != now["train_text"]:
        raise UserError(
            f"{out} was begun with other text ({before['train']}) than {now['train']} has.",
            "Resume with the same --train, or choose another --out.",
        )
    old, new = before["settings"], now["settings"]
    # Written by an earlier version: `by` was left out, or had another name.
    old = old | {"by": canonical(old.get("by") or before.get("method") or str(new["by"]))}
    changed = [name for name in new if old.get(name) != new[name]]
    if changed:
        name = changed[0]
        raise UserError(
            f"{out} was begun with --{name.replace('_', '-')} {old.get(name)},"
            f" now it is {new[name]}.",
            "Resume with the same settings, or choose another --out.",
        )
    return before


def _fingerprints(run: Run, train: Path) -> list[str]:
    """Hashes of both sides of the training text: two folders may hold the same."""
    data = run.config.data
    corpus = corpus_of_run(train, data.source, data.target)
    return [text_fingerprint(corpus.path("train", side)) for side in ("source", "target")]


def _hash(run: Path) -> str:
    return sha256_of(require_file(resolve_run(run) / WEIGHTS))


def _is_new(folder: Path) -> bool:
    """Whether a folder holds nothing but temporary files of a killed process."""
    return folder.is_dir() and all(path.suffix == ".partial" for path in folder.iterdir())
