"""What a training logs of its heads, against the whole analysis of the same sentences."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headcount.role.analysis import roles
from headcount.role.specialisation import Watched, parses_beside, specialisation

if TYPE_CHECKING:
    from conftest import Place


def test_it_says_what_the_analysis_says(place: Place) -> None:
    run = place.run
    watched = Watched.parsed(place.conllu, run.source_tokenizer, 64)
    begin = time.process_time()
    line = specialisation(run.model, watched, run.source_tokenizer)
    assert time.process_time() - begin < 2
    result = roles(run, conllu=place.conllu, examples=False)
    confidence = [found.confidence or 0.0 for found in result.heads.values()]
    assert line["confidence_mean"] == pytest.approx(sum(confidence) / len(confidence), abs=1e-4)
    for key, offset in (("share_left", "-1"), ("share_own", "0"), ("share_right", "+1")):
        best = result.best_head("positional", offset)
        assert best is not None
        assert line[key] == pytest.approx(best.score.value, abs=1e-4)
    for relation in ("nsubj", "obj", "amod", "advmod"):
        lines = [best for best in result.relations if best.relation == relation]
        if not lines[0].instances:
            assert f"{relation}_best" not in line
            continue
        best_of_both = max(best.score.value or 0.0 for best in lines)
        assert line[f"{relation}_best"] == pytest.approx(best_of_both, abs=1e-4)
        assert line[f"{relation}_baseline"] == pytest.approx(lines[0].baseline.value, abs=1e-4)


def test_without_parses_there_are_no_relations(place: Place) -> None:
    run = place.run
    ids = [run.source_tokenizer.encode(sentence.text) for sentence in place.sentences]
    line = specialisation(run.model, Watched.tokens(ids), run.source_tokenizer)
    parsed = Watched.parsed(place.conllu, run.source_tokenizer, 64)
    both = specialisation(run.model, parsed, run.source_tokenizer)
    assert "nsubj_best" not in line
    assert line == {name: both[name] for name in line}
    assert specialisation(run.model, Watched.tokens([]), run.source_tokenizer) == {}


def test_parses_at_hand(tmp_path: Path) -> None:
    source = tmp_path / "dev.en"
    assert parses_beside(source) is None
    cached = tmp_path / "parses" / "dev.en.some_parser.0123.conllu"
    cached.parent.mkdir()
    cached.touch()
    assert parses_beside(source) == cached
    (tmp_path / "dev.conllu").touch()
    assert parses_beside(source) == tmp_path / "dev.conllu"
