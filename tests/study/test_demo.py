"""The story that the demo tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted import PlantedModel, plant

from headcount.config import Config
from headcount.errors import UserError
from headcount.files import write_json, write_text
from headcount.heads import Head, HeadLayout
from headcount.role.head_roles import Example
from headcount.role.result import Roles
from headcount.study.demo import (
    SENTENCES,
    Story,
    _other_text,
    demo_study,
    first_look,
    heads_by_name,
)
from headcount.study.recipe import PRUNED
from headcount.study.results import StudyResults, load_results


def results_on(corpus: str, where: Path, **data: object) -> StudyResults:
    """A full and a pruned model, trained on Tatoeba unless `data` says otherwise."""
    config = Config.model_validate({"data": data, "model": {"layers": 1, "heads": 2, "width": 8}})
    write_text(where / "config.yaml", config.to_yaml())
    write_json(where / "heads.json", HeadLayout.full(1, 1, 2).to_json())
    found = load_results(where)
    (full,) = found.models
    pruned = replace(full, id="pruned", kind=PRUNED, baseline=full.id)
    pair = replace(found.pairs[0], corpus=corpus)
    return replace(found, pairs=(pair,), models=(full, pruned))


def test_bleu_on_text_that_only_the_pruned_model_has_trained_on_is_explained(
    tmp_path: Path,
) -> None:
    told = "\n".join(_other_text(results_on("builtin", tmp_path)))
    assert "trained on tatoeba-en-fr, and pruning has trained on builtin" in told
    assert _other_text(results_on("tatoeba-en-fr", tmp_path)) == []
    assert _other_text(results_on("builtin", tmp_path, folder="corpora/en-fr")) == []


def test_heads_are_named_with_the_sentence_that_shows_them(tmp_path: Path) -> None:
    functions = {"enc.1.0": [("positional", "-1", 0.95)], "enc.3.0": [("positional", "-1", 0.92)]}
    study = plant(tmp_path, [PlantedModel("full", functions=functions)])
    roles = Roles.load(study / "runs" / "full" / "analysis" / "roles.json")
    example = Example("The old dog .", ("▁The", "▁old", "▁dog"), (0, 0, 1), 2, 2, 0.9)
    roles = roles.with_examples({(Head("enc", 1, 0), "positional", "-1"): example})
    first, second, *_ = heads_by_name(roles)
    assert first.startswith("  positional: enc.1.0 looks one token to the left in 95 % of cases")
    assert first.endswith("also enc.3.0")
    assert second.strip() == "“The old dog .” (2 of 2 here)"
    none = plant(tmp_path / "none", [PlantedModel("full", functions={})])
    lines = heads_by_name(Roles.load(none / "runs" / "full" / "analysis" / "roles.json"))
    assert lines[0].startswith("  syntactic: no head meets the criterion; the nearest: enc.0.0")
    assert "looks from the verb to its subject in 15 % of cases" in lines[0]


def test_parts_are_told_as_soon_as_their_stages_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_on("tatoeba-en-fr", tmp_path)
    monkeypatch.setattr("headcount.study.demo.load_results", lambda folder: results)
    monkeypatch.setattr("headcount.study.demo._translations", lambda results: ["translated"])
    story = Story(demo_study(None, train=True, minutes=None), tmp_path)
    assert story.told({"en-fr/full"}) == []
    done = {"en-fr/full/score", "en-fr/enc-penalty-0.01/score", "en-fr/enc-penalty-0.01/roles"}
    told = story.told(done)
    assert told[0].startswith("Pruned: all 2 encoder heads are left")
    assert told[-1] == "translated"
    assert story.told(done) == []  # once


def test_the_first_look_needs_neither_a_download_nor_a_parser(run_folder: Path) -> None:
    lines = list(first_look(run_folder))
    assert [line.split("  →  ")[0] for line in lines[:2]] == list(SENTENCES)
    assert "on 300 sentences" in lines[2]
    other = next(number for number, line in enumerate(lines) if "demo-ru" in line)
    assert 3 < other < len(lines) - 1
    assert any("positional: enc." in line for line in lines[other:])
    assert not (run_folder / "analysis" / "roles.json").exists()


def test_a_corpus_that_nobody_knows_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UserError, match=r"no corpus 'tatoeba-fr'.*Did you mean 'tatoeba-en-fr'"):
        demo_study("tatoeba-fr", train=False, minutes=None)
