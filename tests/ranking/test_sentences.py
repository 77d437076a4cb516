"""What sentences are used, and what is said of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headcount.errors import UserError
from headcount.ranking.measuring import load_sentences
from headcount.run import load_run


@pytest.fixture(scope="module")
def run(run_folder):
    return load_run(run_folder)


def test_sentences_that_cannot_be_used_are_counted(run):
    long = "cat " * (run.config.model.max_positions + 1)
    unknown = "\u4e2d\u6587"
    found = load_sentences(run, ["The cat .", "", "  ", long, unknown, "A dog ."])
    assert len(found) == 2
    assert found.skipped == {"empty": 2, "too_long": 1, "unknown": 1}
    assert found.sources == run.source_tokenizer.encode_batch(["The cat .", "A dog ."])


def test_references_go_with_their_sentences(run):
    found = load_sentences(run, ["The cat .", "", "A dog ."], ["Le chat .", "Le", "chien ."])
    assert found.reference_lines == ["Le chat .", "chien ."]
    assert found.references == run.target_tokenizer.encode_batch(["Le chat .", "chien ."])


def test_a_limit_takes_lines_evenly_spread(run):
    lines = [f"The cat {'sees ' * n}." for n in range(10)]
    found = load_sentences(run, lines, limit=3)
    assert found.sources == run.source_tokenizer.encode_batch([lines[0], lines[3], lines[6]])
    assert len(load_sentences(run, lines, limit=99)) == 10


def test_nothing_to_use_is_an_error(run, tmp_path):
    empty = tmp_path / "empty.en"
    empty.write_text("")
    with pytest.raises(UserError, match=r"empty\.en is empty"):
        load_sentences(run, empty)
    with pytest.raises(UserError, match=r"None of the 2 sentences can be used.*2 of unknown"):
        load_sentences(run, ["\u4e2d\u6587", "\u6587"])
    with pytest.raises(UserError, match="2 source sentences, but 1 references"):
        load_sentences(run, ["The cat .", "A dog ."], ["Le chat ."])
    with pytest.raises(UserError, match="0 sentences are too few"):
        load_sentences(run, ["The cat ."], limit=0)


def test_a_run_with_few_positions_skips_long_sentences_only(run):
    short = replace(run, config=run.config.model_copy(deep=True))
    short.config.model.max_positions = 4
    found = load_sentences(short, ["cat", "The cat sees the big dog ."])
    assert found.skipped["too_long"] == 1
