"""Relevance of tokens in files: what `relevance` gives for each sentence, summed up by position."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import headcount
from headcount import attribution
from headcount.cli import app
from headcount.errors import UserError

LINES = [
    "The cat sees the dog .",
    "A big dog and a small cat see it .",
    "I see you , and you see me !",
    "Le chat voit le grand chien .",
]


def test_it_is_what_relevance_gives(run_folder):
    model = headcount.load(run_folder, device="cpu")
    result = headcount.attribute(model, LINES, rule="ratio")
    assert len(result.sentences) == len(LINES)
    for line, sentence in zip(LINES, result.sentences, strict=True):
        alone = model.relevance(line, beam=1)
        assert sentence.source_tokens == alone.source_tokens
        assert sentence.steps == alone.steps
        np.testing.assert_allclose(sentence.source, alone.source, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(sentence.target, alone.target, rtol=1e-3, atol=1e-4)
    assert result.difference < 1e-5


def test_zplus_shares_add_up(run_folder):
    """No relevance is negative, so the contribution is the plain quotient of sums."""
    result = headcount.attribute(run_folder, LINES)
    for sentence in result.sentences:
        assert sentence.source.min() > -1e-6
        assert sentence.target.min() > -1e-6
        source, target = sentence.source.sum(1), sentence.target.sum(1)
        np.testing.assert_allclose(sentence.contribution, source / (source + target), rtol=1e-6)
    whole = np.concatenate([sentence.contribution for sentence in result.sentences])
    assert result.mean == pytest.approx(whole.mean())
    first = np.mean([sentence.contribution[0] for sentence in result.sentences])
    assert result.by_step[0].value == pytest.approx(first, abs=1e-5)
    assert [row.position for row in result.by_step] == list(range(1, len(result.by_step) + 1))


def test_references_are_read(run_folder):
    result = headcount.attribute(run_folder, LINES[:2], ["Le chat", "le chien voit"])
    tokenizer = headcount.load(run_folder).target_tokenizer
    assert len(result.sentences[0].target_tokens) == 1 + len(tokenizer.encode("Le chat"))
    assert result.about["decoder_reads"] == "reference"


def test_sums_that_do_not_add_up_are_noticed(run_folder, monkeypatch):
    monkeypatch.setattr(attribution, "AGREEMENT", -1.0)
    with pytest.raises(RuntimeError, match="does not add up"):
        headcount.attribute(run_folder, LINES)


def test_the_verb_writes_everything(run_folder, tmp_path):
    (tmp_path / "a.en").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    command = ["attribute", str(run_folder), "--src", str(tmp_path / "a.en")]
    done = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    stored = json.loads((tmp_path / "out" / "attribution.json").read_text(encoding="utf-8"))
    assert printed == stored
    lines = (tmp_path / "out" / "attribution.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(LINES)
    first = json.loads(lines[0])
    assert np.shape(first["source"]) == (len(first["steps"]), len(first["source_tokens"]))
    assert (tmp_path / "out" / "attribution.svg").stat().st_size > 5000
    assert (tmp_path / "out" / "attribution.csv").read_text().startswith("by,position,value")


def test_bad_input(run_folder, tmp_path):
    with pytest.raises(UserError, match="no rule"):
        headcount.attribute(run_folder, LINES, rule="x")
    with pytest.raises(UserError, match="references"):
        headcount.attribute(run_folder, LINES, LINES[:1])
    with pytest.raises(UserError, match="does not exist"):
        headcount.attribute(run_folder, tmp_path / "none.en")
