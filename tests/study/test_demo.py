"""The story that the demo tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headcount.config import Config
from headcount.errors import UserError
from headcount.files import write_json, write_text
from headcount.heads import HeadLayout
from headcount.study.demo import demo_study, tell
from headcount.study.models import PRUNED
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headcount.study.demo._translations", lambda full, pruned: [])
    told = "\n".join(tell(results_on("builtin", tmp_path)))
    assert "trained on tatoeba-en-fr, and pruning has trained on builtin" in told
    assert "trained on" not in "\n".join(tell(results_on("tatoeba-en-fr", tmp_path)))
    own = results_on("builtin", tmp_path, folder="corpora/en-fr")
    assert "trained on" not in "\n".join(tell(own))


def test_a_corpus_that_nobody_knows_is_refused_before_anything_is_written() -> None:
    with pytest.raises(UserError, match=r"no corpus 'tatoeba-fr'.*Did you mean 'tatoeba-en-fr'"):
        demo_study("tatoeba-fr", train=False, minutes=None)
