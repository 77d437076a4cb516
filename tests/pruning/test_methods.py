"""Pruning methods: a new one prunes, old names still work. See also tests/test_registries.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from headcount.pruning.methods import ALIASES, METHODS, Method, method_named
from headcount.pruning.prune import prune
from headcount.pruning.record import read_record
from headcount.pruning.selection import Request, Selection
from headcount.pruning.settings import make_settings
from headcount.study.plan import make_plan
from headcount.study.recipe import load_study
from headcount.study.results import load_results

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
from planted import PlantedModel, keep, plant


class LastHeads(Selection):
    """Keeps the last heads, from the first update on."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.heads, request.device)
        self.keep = request.settings.keep or 0

    def begin(self, update: int) -> None:
        """Nothing changes."""

    def gates(self) -> Tensor:
        return self.is_open().float()

    def is_open(self) -> Tensor:
        return torch.arange(len(self.heads), device=self.device) >= len(self.heads) - self.keep


LAST = Method("last", "the last heads of all stay", "the last ones", "#123456", "keep", LastHeads)


@pytest.fixture
def dummy() -> Iterator[Method]:
    """A method that exists for the length of one test."""
    with METHODS.adding(LAST) as method:
        yield method
    assert "last" not in METHODS


def test_it_prunes(dummy: Method, baseline: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prune(baseline, corpus, out, keep=3, by="last", updates=3, finetune=1, bleu_sentences=0)
    record = read_record(out)
    assert record["method"] == record["settings"]["by"] == "last"
    assert record["kept"] == ["enc.0.1", "enc.1.0", "enc.1.1"]


def test_old_names_become_the_new_ones(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text("data: {corpus: builtin}\nmodel: {layers: 1}\n")
    (tmp_path / "study.yaml").write_text(
        "pairs: [{name: en-fr, recipe: train.yaml}]\n"
        "pruning: {encoder_keep: [2], keep_by: [learned]}\n"
    )
    stages = make_plan(load_study(tmp_path / "study.yaml"), tmp_path / "out")
    assert "en-fr/enc-keep-2-exact" in {stage.name for stage in stages}
    few = keep(["enc.5.6", "enc.5.7"])
    old = PlantedModel("old", "pruned", few, "top_k", ("enc",), "full", keep=2, bleu=29.0)
    results = load_results(plant(tmp_path / "planted", [PlantedModel("full", bleu=30.0), old]))
    assert results.model("old").method == "exact"


def test_names_are_unique_and_colours_differ() -> None:
    assert list(METHODS)[:2] == ["gates", "exact"]
    assert {"lrp", "confidence", "ablation", "gradient", "random"} <= set(METHODS)
    colours = [method.colour for method in METHODS.values()]
    assert len(set(colours)) == len(colours)
    assert not set(ALIASES) & set(METHODS)
    assert all(new in METHODS for new in ALIASES.values())


def test_each_method_says_what_it_needs() -> None:
    assert make_settings(penalty=0.1).method is METHODS["gates"]
    assert make_settings(keep=3).method is METHODS["exact"]
    assert make_settings(keep=3, by="learned").by == "exact"
    assert method_named("focus").label == "by focus"
    with_price = replace(LAST, name="priced", needs="penalty")
    with METHODS.adding(with_price):
        assert make_settings(penalty=0.1, by="priced").method == with_price


def test_a_pruning_of_an_earlier_version_is_resumed(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    """Its record has no `by` for what was learned, and another name of the method."""
    settings = make_settings(keep=2, updates=3, finetune=1, bleu_sentences=0)
    out = tmp_path / "out"
    prune(baseline, corpus, out, settings)
    record = json.loads((out / "pruning.json").read_text())
    record |= {"method": "exact number", "settings": record["settings"] | {"by": None}}
    (out / "pruning.json").write_text(json.dumps(record))
    assert prune(baseline, corpus, out, settings, resume=True).model.heads.count("enc") == 2
