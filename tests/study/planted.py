"""Studies with planted numbers: everything that a study folder holds, without any training."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headcount.config import Config, ModelConfig
from headcount.files import write_json, write_text
from headcount.heads import SITES, Head, HeadLayout, HeadTable
from headcount.role.relations import DIRECTIONS, PAPER_RELATIONS, arrow
from headcount.study.explorer import ModelAttention, SentenceAttention, pack
from headcount.study.score_model import SentenceCounts, sentence_counts_path

BASELINES = {"nsubj": 0.40, "obj": 0.42, "amod": 0.75, "advmod": 0.38}
OFFSETS = {
    "nsubj": {-1: 40, -2: 30, -3: 18, -4: 7, 1: 5},
    "obj": {1: 28, 2: 42, 3: 20, 4: 8, -1: 2},
    "amod": {-1: 75, -2: 18, 1: 7},
    "advmod": {-1: 38, 1: 33, 2: 17, -2: 12},
}
FULL = HeadLayout.full(6, 6, 8)
HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'> & \"q\""
)

Functions = Mapping[str, Sequence[tuple[str, str, float]]]


@dataclass
class PlantedModel:
    """A model of a planted study; what is None or empty is not written."""

    id: str
    kind: str = "full"
    layout: HeadLayout = FULL
    method: str | None = None
    sites: tuple[str, ...] = ()
    baseline: str | None = None
    penalty: float | None = None
    keep: int | None = None
    seed: int = 1
    pair: str = "en-fr"
    domain: str = "news"
    bleu: float | None = None
    bleu_interval: float | None = 0.6
    counts: SentenceCounts | None = None
    margin_width: float = 0.03
    columns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    functions: Functions | None = None
    accuracies: Mapping[str, float] = field(default_factory=dict)
    instances: int = 500
    rare_sentences: int = 300
    undecided: Sequence[str] = ()
    gates: Sequence[tuple[int, Sequence[float]]] = ()
    decoder_layers: int = 6

    def config(self) -> Config:
        """A configuration that fits the layout."""
        depths = {site: len(self.layout.layers[site]) for site in SITES}
        model = ModelConfig(
            encoder_layers=depths["enc"], decoder_layers=depths["dec"], heads=8, width=64
        )
        return Config(model=model)


def heads(*names: str) -> list[Head]:
    """Heads by name."""
    return [Head.parse(name) for name in names]


def keep(names: Sequence[str], sites: Sequence[str] = ("enc",), full: HeadLayout = FULL):
    """The layout in which these sites keep only these heads."""
    return full.keeping(heads(*names), sites)


def plant(
    folder: Path, models: Sequence[PlantedModel], pairs: Sequence[dict] | None = None
) -> Path:
    """Write a whole study folder."""
    known = pairs or [
        {"name": "en-fr", "source": "en", "target": "fr", "domain": "news",
         "corpus": "Planted news", "training_pairs": 1000}
    ]  # fmt: skip
    by_id = {model.id: model for model in models}
    for model in models:
        plant_run(folder / "runs" / model.id, model, by_id)
        if model.bleu is not None:
            path = folder / "scores" / f"{model.id}.json"
            write_json(path, scores_json(model))
            if model.counts is not None:
                model.counts.save(sentence_counts_path(path))
    listed = [
        {
            "id": m.id, "pair": m.pair, "domain": m.domain, "kind": m.kind, "method": m.method,
            "sites": list(m.sites), "penalty": m.penalty, "keep": m.keep, "seed": m.seed,
            "baseline": m.baseline, "run": f"runs/{m.id}",
        }
        for m in models
    ]  # fmt: skip
    study = {
        "title": "A planted study",
        "created": "2024-01-02",
        "pairs": known,
        "models": listed,
        "versions": {"headcount": "0.1.0"},
    }
    write_json(folder / "study.json", study)
    return folder


def scores_json(model: PlantedModel) -> dict[str, Any]:
    """What the runner writes of a scored model."""
    assert model.bleu is not None
    measure = {"name": "BLEU", "value": model.bleu, "signature": "planted", "mean": model.bleu,
               "interval": model.bleu_interval, "p_value": None}  # fmt: skip
    chrf = measure | {"name": "chrF2", "value": model.bleu + 20}
    parameters = 100_000 + 1000 * len(model.layout.heads())
    return {"bleu": measure, "chrf": chrf, "lines": 500, "dev_loss": 2.0 - model.bleu / 100,
            "parameters": parameters}  # fmt: skip


def plant_run(folder: Path, model: PlantedModel, by_id: Mapping[str, PlantedModel]) -> None:
    """Everything of a run folder but its weights."""
    write_text(folder / "config.yaml", model.config().to_yaml())
    write_json(folder / "heads.json", model.layout.to_json())
    table = HeadTable(model.layout.heads())
    for name, values in model.columns.items():
        table.add(name, {Head.parse(head): value for head, value in values.items()})
    if model.functions is not None:
        roles = roles_json(model)
        table.add("confidence", {Head.parse(h["head"]): h["confidence"] for h in roles["heads"]}
                  | table.columns.get("confidence", {}))  # fmt: skip
        write_json(folder / "analysis" / "roles.json", roles)
    if table.columns:
        table.save(folder / "analysis")
    if model.kind == "pruned":
        full = by_id[str(model.baseline)].layout
        plant_pruning(folder, model, full)


def plant_pruning(folder: Path, model: PlantedModel, full: HeadLayout) -> None:
    """`pruning.json` and the log of gates."""
    kept = set(model.layout.heads())
    record = {
        "finished": True,
        "method": model.method,
        "settings": {"sites": list(model.sites), "penalty": model.penalty, "seed": model.seed},
        "baseline": {
            "run": "full",
            "weights": "0",
            "heads": full.to_json(),
            "parameters": 200_000,
        },
        "train": "corpus",
        "decided": {"undecided": list(model.undecided), "binary": {}},
        "after": {},
        "parameters": 150_000,
        "progress": {"update": 3},
        "kept": [str(h) for h in full.heads(model.sites) if h in kept],
        "closed": [str(h) for h in full.heads(model.sites) if h not in kept],
        "heads": model.layout.to_json(),
    }
    write_json(folder / "pruning.json", record)
    lines = [
        {"kind": "train", "update": update, "open_probability": list(row)}
        for update, row in model.gates
    ]
    write_text(folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


def roles_json(model: PlantedModel) -> dict[str, Any]:
    """`roles.json` of an encoder whose heads have exactly the planted functions."""
    functions = model.functions or {}
    found = []
    for head in model.layout.heads(("enc",)):
        own = functions.get(str(head), ())
        offsets = dict.fromkeys(range(-2, 3), 0.15)
        relations = {
            (relation, d.name): BASELINES[relation] - 0.25
            for relation in PAPER_RELATIONS
            for d in DIRECTIONS
        }
        rare = 0.2
        for kind, name, score in own:
            if kind == "positional":
                offsets[int(name)] = score
            elif kind == "rare words":
                rare = score
            else:
                relations[direction_key(name)] = score
        found.append(head_json(str(head), model, own, offsets, relations, rare))
    return {
        "format": 1,
        "data": {"sentences": 600, "tokens": 6000, "parses": "planted"},
        "criteria": {"threshold": 0.9, "margin": 0.1},
        "heads": found,
        "relations": relation_lines(model, found),
        "offsets": {name: {str(o): 5 * n for o, n in OFFSETS[name].items()} for name in OFFSETS},
        "persons": {"subjects": 200, "first": 0.3, "second": 0.2, "third": 0.5},
        "rare_words": {"sentences": model.rare_sentences, "queries": 3000, "chance_rarest": 0.1,
                       "chance_two_rarest": 0.2},
        "columns": [],
    }  # fmt: skip


def head_json(
    head: str,
    model: PlantedModel,
    own: Sequence[tuple[str, str, float]],
    offsets: Mapping[int, float],
    relations: Mapping[tuple[str, str], float],
    rare: float,
) -> dict[str, Any]:
    """One head of `roles.json`."""
    confidence = model.columns.get("confidence", {}).get(head, 0.4)
    roles = [
        {"role": kind, "name": name, "score": score, "score_low": score - 0.02,
         "score_high": score + 0.02, "baseline": 0.2, "margin": score - 0.2, "margin_low": 0.0,
         "margin_high": 1.0, "instances": 100}
        for kind, name, score in own
    ]  # fmt: skip
    return {
        "head": head,
        "confidence": confidence,
        "roles": roles,
        "offsets": [{"offset": o, "share": s, "low": s, "high": s} for o, s in offsets.items()],
        "relations": [
            {"relation": r, "direction": d, "accuracy": a, "low": a, "high": a}
            for (r, d), a in relations.items()
        ],
        "rare_words": {
            "rarest": {"value": rare / 2, "low": 0.0, "high": 1.0},
            "two_rarest": {"value": rare, "low": 0.0, "high": 1.0},
        },
    }


def relation_lines(model: PlantedModel, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Table 1 of the planted heads, or the accuracies that were asked for."""
    lines = []
    for relation in PAPER_RELATIONS:
        for direction in DIRECTIONS:
            scores = {
                head["head"]: r["accuracy"]
                for head in found
                for r in head["relations"]
                if (r["relation"], r["direction"]) == (relation, direction.name)
            }
            best = max(scores, key=lambda h: scores[h])
            accuracy = model.accuracies.get(relation, scores[best])
            base = BASELINES[relation]
            lines.append(
                {"relation": relation, "direction": direction.name,
                 "arrow": arrow(relation, direction), "instances": model.instances,
                 "best_head": best, "accuracy": accuracy, "accuracy_low": accuracy - 0.03,
                 "accuracy_high": accuracy + 0.03, "baseline": base, "baseline_low": base - 0.02,
                 "baseline_high": base + 0.02, "baseline_offset": -1, "margin": accuracy - base,
                 "margin_low": accuracy - base - model.margin_width,
                 "margin_high": accuracy - base + model.margin_width}
            )  # fmt: skip
    return lines


def direction_key(name: str) -> tuple[str, str]:
    """`nsubj v → s` as (relation, direction)."""
    relation, shown = name.split(" ", 1)
    return relation, next(d.name for d in DIRECTIONS if arrow(relation, d) == shown)


def plant_explorer(folder: Path, models: Sequence[PlantedModel], texts: Sequence[str]) -> None:
    """Random attention of every model on some sentences; a token is a word."""
    for model in models:
        rng = np.random.default_rng(len(model.id))
        sentences = []
        for text in texts:
            tokens = (*("▁" + word for word in text.split()), "</s>")
            target = ("<s>", *("▁" + word for word in reversed(text.split())))
            shapes = {"enc": (len(tokens), len(tokens)), "dec": (len(target), len(target)),
                      "cross": (len(target), len(tokens))}  # fmt: skip
            arrays = []
            for head in model.layout.heads():
                scores = np.exp(3 * rng.normal(size=shapes[head.site]))
                scores = np.tril(scores) if head.site == "dec" else scores
                arrays.append(scores / scores.sum(1, keepdims=True))
            counts = tuple(1000 // (1 + len(word)) ** 2 for word in text.split())
            translation = " ".join(reversed(text.split()))
            sentences.append(
                SentenceAttention(text, tokens, counts, target, translation, pack(arrays))
            )
        data = ModelAttention(model.id, model.layout, tuple(sentences), "planted")
        write_json(folder / "explorer" / f"{model.id}.json", data.to_json())


def closing_gates(layout: HeadLayout, sites: Sequence[str], kept: set[Head], seed: int = 1):
    """A log of gates that start open and end on the side of the kept heads."""
    rng = random.Random(seed)
    pace = [rng.uniform(2, 9) for _ in layout.heads(sites)]
    rows = []
    for step in range(21):
        row = []
        for speed, head in zip(pace, layout.heads(sites), strict=True):
            fall = min(1.0, step / 20 * 10 / speed)
            row.append(round(1.0 - 0.02 * fall if head in kept else 0.97 * (1 - fall) + 0.01, 4))
        rows.append((20 * step, row))
    return rows
