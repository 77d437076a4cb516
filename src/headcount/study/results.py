"""A study folder read back as typed values: what figures, tables, claims and the report work on.

The layout is a contract with the code that runs a study:

    study.json               title, created, pairs, models, versions (see `_parse`)
    runs/<model id>/         run folders: config.yaml, heads.json, metrics.jsonl, analysis/, and
                             pruning.json where heads were pruned
    scores/<model id>.json   `ModelScores.to_json()` (`headcount.study.score_model`); beside it
                             <model id>.sentences.json, counts per sentence for paired tests
    bench.json               what `headcount bench --json` gives; optional
    explorer/<model id>.json attention on some sentences (`headcount.study.explorer`); optional
    stages/<stage>.json      how long each finished stage took; optional

Everything but `study.json` may be missing: models that have no run folder yet are left out, with
those that come from them. A plain run folder is read as a study of that one model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headcount.config import Config
from headcount.errors import UserError
from headcount.files import inside, parsing, read_json
from headcount.heads import Head, HeadLayout, HeadTable
from headcount.pruning.record import read_record
from headcount.ranking.rank import Provenance
from headcount.role.result import ROLES, Roles
from headcount.run import CONFIG, HEADS, PRUNING, load_config
from headcount.study.recipe import FULL, KINDS, Model
from headcount.study.score_model import ModelScores
from headcount.training.metrics import read_metrics

STUDY = "study.json"
SCORES = "scores"
BENCH = "bench.json"
EXPLORER = "explorer"
STAGES = "stages"


@dataclass(frozen=True)
class PairInfo:
    """A language pair on one domain, and the text that its models were trained on."""

    name: str
    source: str
    target: str
    domain: str
    corpus: str
    training_pairs: int | None


@dataclass(frozen=True)
class GateHistory:
    """Open probabilities of gates while heads were chosen: `probabilities[time][head]`."""

    heads: tuple[Head, ...]
    updates: tuple[int, ...]
    probabilities: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, kw_only=True)
class StudyModel(Model):
    """A model of a study with everything from its run folder and its scores."""

    folder: Path
    config: Config
    heads: HeadLayout
    table: HeadTable
    roles: Roles | None = None
    ranking: Provenance | None = None
    pruning: Mapping[str, Any] | None = None
    gates: GateHistory | None = None
    scores: ModelScores = field(default_factory=ModelScores)

    def column(self, name: str) -> dict[Head, float]:
        """A numeric column of the head table; empty where it was not measured."""
        return {h: float(v) for h, v in self.table.columns.get(name, {}).items() if v is not None}

    def layer(self, site: str, layer: int) -> list[Head]:
        """The heads of one layer of a site."""
        return [Head(site, layer, index) for index in self.heads.layers[site][layer]]

    @property
    def bleu(self) -> float | None:
        """Test BLEU."""
        return self.scores.bleu


@dataclass(frozen=True)
class StudyResults:
    """A whole study; `missing` are models that it lists but that have not been made yet."""

    folder: Path
    title: str
    created: str
    pairs: tuple[PairInfo, ...]
    models: tuple[StudyModel, ...]
    bench: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    is_study: bool = True

    def model(self, name: str) -> StudyModel:
        """The model of that id."""
        return next(model for model in self.models if model.id == name)

    def pair(self, model: StudyModel) -> PairInfo:
        """The language pair and domain of a model."""
        return next(p for p in self.pairs if (p.name, p.domain) == (model.pair, model.domain))

    @property
    def out(self) -> Path:
        """Where figures, tables, claims and the report are written."""
        return self.folder if self.is_study else self.folder / "analysis" / "report"


def load_results(folder: Path | str) -> StudyResults:
    """Read a study folder, or a run folder as a study of one model."""
    folder = Path(folder)
    if (folder / STUDY).is_file():
        with parsing(folder / STUDY, "Run `headcount study` again."):
            return _parse(folder, read_json(folder / STUDY))
    if (folder / CONFIG).is_file():
        return _single(folder)
    what = "does not exist" if not folder.exists() else f"holds neither {STUDY} nor {CONFIG}"
    raise UserError(f"{folder} {what}.", "Give the folder of a study, or of a run.")


def _parse(folder: Path, stored: Mapping[str, Any]) -> StudyResults:
    pairs = tuple(
        PairInfo(
            name=str(pair["name"]),
            source=str(pair["source"]),
            target=str(pair["target"]),
            domain=str(pair["domain"]),
            corpus=str(pair.get("corpus") or ""),
            training_pairs=_whole(pair.get("training_pairs")),
        )
        for pair in stored["pairs"]
    )
    _check(folder / STUDY, pairs, stored["models"])
    present = _finished(folder, stored["models"])
    models = tuple(_model(folder, entry) for entry in present)
    if not models:
        raise UserError(
            f"{folder} has none of its models.",
            "If the study is still running, wait; if it was published without models, use the"
            " report that came with it.",
        )
    bench = read_json(folder / BENCH) if (folder / BENCH).is_file() else ()
    return StudyResults(
        folder=folder,
        title=str(stored["title"]),
        created=str(stored["created"]),
        pairs=pairs,
        models=models,
        missing=tuple(str(entry["id"]) for entry in stored["models"] if entry not in present),
        bench=tuple(bench),
        versions={str(k): str(v) for k, v in (stored.get("versions") or {}).items()},
        times=stage_times(folder),
    )


def stage_times(folder: Path) -> dict[str, float]:
    """The seconds of every finished stage of a study: `en-fr/full/rank`."""
    stamps = {path.stem: read_json(path) for path in sorted((folder / STAGES).glob("*.json"))}
    return {
        name.replace("--", "/"): float(stamp["seconds"])
        for name, stamp in stamps.items()
        if "seconds" in stamp
    }


def _check(where: Path, pairs: Sequence[PairInfo], models: Sequence[Mapping[str, Any]]) -> None:
    """Models must be of known kinds and pairs, and refer to models that are listed."""
    known, settings = {entry["id"] for entry in models}, {(p.name, p.domain) for p in pairs}
    for entry in models:
        name, kind = entry["id"], entry["kind"]
        if kind not in KINDS:
            raise UserError(
                f"{where}: model '{name}' is of an unknown kind '{kind}'.",
                f"Kinds are {', '.join(KINDS)}.",
            )
        if (entry["pair"], entry["domain"]) not in settings:
            raise UserError(
                f"{where}: model '{name}' is of pair '{entry['pair']}' on '{entry['domain']}',"
                " which the study does not list.",
                "List it under pairs.",
            )
        if kind != FULL and entry.get("baseline") not in known:
            raise UserError(
                f"{where}: model '{name}' comes from '{entry.get('baseline')}': not listed.",
                "List that model too.",
            )


def _finished(folder: Path, models: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The models whose runs are there, and the runs that they come from."""
    there = {
        entry["id"]: entry
        for entry in models
        if all((inside(folder, entry["run"]) / name).is_file() for name in (CONFIG, HEADS))
    }

    def rooted(entry: Mapping[str, Any]) -> bool:
        on_the_way = []
        while entry["id"] in there and entry["kind"] != FULL:
            if entry["id"] in on_the_way:
                raise UserError(
                    f"{folder / STUDY}: model '{entry['id']}' comes from itself.",
                    "Fix its baseline.",
                )
            on_the_way.append(entry["id"])
            entry = by_id[entry["baseline"]]
        return entry["id"] in there

    by_id = {entry["id"]: entry for entry in models}
    return [entry for entry in models if rooted(entry)]


def _model(folder: Path, entry: Mapping[str, Any]) -> StudyModel:
    model = Model.from_json(entry)
    scores = inside(folder / SCORES, model.id, ".json")
    return _with_analyses(inside(folder, entry["run"]), scores, **vars(model))


def _single(folder: Path) -> StudyResults:
    data = load_config(folder).data
    pair = f"{data.source}-{data.target}"
    corpus = data.name
    model = _with_analyses(
        folder,
        folder / SCORES / "none.json",
        id=folder.resolve().name,
        pair=pair,
        domain=corpus,
        kind=FULL,
    )
    info = PairInfo(pair, data.source, data.target, corpus, corpus, data.pairs)
    title = f"Attention heads of {model.id}"
    return StudyResults(folder, title, "", (info,), (model,), is_study=False)


def _with_analyses(run: Path, scores: Path, **known: Any) -> StudyModel:
    """A model with everything that its run folder holds."""
    with parsing(run, "Restore its files, or create the run again."):
        return _read_analyses(run, scores, **known)


def _read_analyses(run: Path, scores: Path, **known: Any) -> StudyModel:
    config = load_config(run)
    layout = HeadLayout.from_json(read_json(run / HEADS), str(run / HEADS))
    analysis = run / "analysis"
    pruning = read_record(run) if (run / PRUNING).is_file() else None
    return StudyModel(
        folder=run,
        config=config,
        heads=layout,
        table=HeadTable.load(analysis, layout.heads()),
        roles=Roles.load(analysis / ROLES) if (analysis / ROLES).is_file() else None,
        ranking=Provenance.load(analysis),
        pruning=pruning,
        gates=_gates(run, pruning),
        scores=ModelScores.load(scores) if scores.is_file() else ModelScores(),
        **known,
    )


def _gates(run: Path, pruning: Mapping[str, Any] | None) -> GateHistory | None:
    """What `metrics.jsonl` says about gates; `heads` are all that could be pruned, in order."""
    if pruning is None:
        return None
    path = run / PRUNING
    full = HeadLayout.from_json(pruning["baseline"]["heads"], str(path))
    heads = tuple(full.heads(pruning["settings"]["sites"]))
    lines = [
        line
        for line in read_metrics(run / "metrics.jsonl")
        if line.get("kind") == "train" and len(line.get("open_probability") or ()) == len(heads)
    ]
    if len(lines) < 2:
        return None
    return GateHistory(
        heads,
        tuple(int(line["update"]) for line in lines),
        tuple(tuple(float(p) for p in line["open_probability"]) for line in lines),
    )


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)
