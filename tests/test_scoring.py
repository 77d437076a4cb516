"""Scores are sacreBLEU's own, intervals and p-values included."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import sacrebleu
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

import headcount
from headcount.errors import UserError
from headcount.model.decoding import GREEDY
from headcount.run import load_run
from headcount.scoring import compare_lines, quick_bleu, read_pair, score_lines
from headcount.translation import translate_lines

WORDS = ["the", "cat", "sees", "a", "big", "dog", ",", "and", "it", "barks", "at", "us"]


def random_test_set(lines: int, noise: float, seed: int) -> tuple[list[str], list[str]]:
    """References, and hypotheses with some words replaced."""
    rng = random.Random(seed)
    references = [rng.choices(WORDS, k=rng.randint(4, 12)) for _ in range(lines)]
    hypotheses = [
        [rng.choice(WORDS) if rng.random() < noise else word for word in line]
        for line in references
    ]
    return [" ".join(line) for line in hypotheses], [" ".join(line) for line in references]


def test_scores_and_signatures_are_sacrebleus() -> None:
    hypotheses, references = random_test_set(60, 0.3, seed=1)
    scores = score_lines(hypotheses, references)
    bleu, chrf = BLEU(), CHRF()
    assert scores.bleu.value == bleu.corpus_score(hypotheses, [references]).score
    assert scores.chrf.value == chrf.corpus_score(hypotheses, [references]).score
    assert scores.bleu.signature == str(bleu.get_signature())
    assert scores.chrf.signature == str(chrf.get_signature())
    assert f"version:{sacrebleu.__version__}" in scores.bleu.signature
    assert (scores.bleu.name, scores.chrf.name) == ("BLEU", "chrF2")
    assert scores.bleu.interval is scores.bleu.mean is None
    assert scores.lines == 60


def test_intervals_are_sacrebleus() -> None:
    hypotheses, references = random_test_set(60, 0.3, seed=1)
    scores = score_lines(hypotheses, references, resamples=200)
    for ours, metric in ((scores.bleu, BLEU()), (scores.chrf, CHRF())):
        theirs = metric.corpus_score(hypotheses, [references], n_bootstrap=200)
        assert ours.value == theirs.score
        assert ours.mean == pytest.approx(theirs._mean, rel=1e-5)
        assert ours.interval == pytest.approx(theirs._ci, rel=1e-5)
        assert ours.signature == str(metric.get_signature())
        assert "bs:200" in ours.signature


def test_interval_where_some_resamples_match_nothing() -> None:
    scores = score_lines(["a", "b c d e f", ""], ["x", "b c d e f", "z"], resamples=50)
    assert scores.chrf.interval is not None
    assert scores.chrf.interval > 0


def test_large_test_sets_get_fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headcount.scoring._RESAMPLED_LINES", 40 * 25)
    hypotheses, references = random_test_set(40, 0.3, seed=1)
    assert "bs:25|" in score_lines(hypotheses, references, resamples=200).bleu.signature


def test_a_better_system_is_told_from_a_worse_one() -> None:
    good, references = random_test_set(120, 0.1, seed=1)
    bad, same = random_test_set(120, 0.5, seed=1)
    bad = [" ".join(reversed(line.split())) for line in bad]
    assert len(same) == len(references)
    scores, baseline = compare_lines(good, bad, references, resamples=200)
    assert scores.bleu.value > baseline.bleu.value + 10
    assert scores.bleu.p_value is not None
    assert scores.bleu.p_value < 0.01
    assert baseline.bleu.p_value is None
    alone = score_lines(good, references, resamples=200)
    assert scores.bleu.interval == pytest.approx(alone.bleu.interval)
    assert baseline.bleu.value == score_lines(bad, references).bleu.value


def test_a_system_does_not_differ_from_itself() -> None:
    hypotheses, references = random_test_set(30, 0.3, seed=2)
    scores, _ = compare_lines(hypotheses, hypotheses, references, resamples=100)
    assert scores.bleu.p_value == scores.chrf.p_value == 1.0


def test_comparison_without_resamples() -> None:
    hypotheses, references = random_test_set(30, 0.3, seed=2)
    scores, baseline = compare_lines(hypotheses, references, references, resamples=0)
    assert baseline.bleu.value == pytest.approx(100)
    assert scores.bleu.p_value is None


def test_as_text_and_as_json() -> None:
    hypotheses, references = random_test_set(30, 0.3, seed=2)
    scores = score_lines(hypotheses, references, resamples=50)
    assert str(scores.bleu) == f"BLEU {scores.bleu.value:.2f} ± {scores.bleu.interval:.2f}"
    assert scores.to_json()["chrf"]["value"] == scores.chrf.value
    assert all(type(value) in (int, float, str, dict, type(None)) for value in flat(scores))


def flat(scores: object) -> list[object]:
    values = scores.to_json()  # type: ignore[attr-defined]
    return [*values["bleu"].values(), *values["chrf"].values(), values["lines"]]


@pytest.mark.parametrize("resamples", [0, 10])
def test_line_counts_must_match(resamples: int) -> None:
    with pytest.raises(UserError, match="2 lines to score, but 1 references"):
        score_lines(["a", "b"], ["a"], resamples)
    with pytest.raises(UserError, match="nothing to score"):
        score_lines([], [], resamples)


def test_quick_bleu_is_bleu_of_greedy_translations(run_folder: Path) -> None:
    run = load_run(run_folder)
    sources = ["the cat sees", "", "a big dog"]
    greedy = translate_lines(run, sources, GREEDY)
    references = [greedy[0] + " x", "y", greedy[2]]
    expected = BLEU().corpus_score(greedy, [references]).score
    assert quick_bleu(run, sources, references) == expected


def test_a_verb_of_the_package(run_folder: Path, tmp_path: Path) -> None:
    sources, references = ["the cat", "a dog"], ["le chat", "un chien"]
    (tmp_path / "s").write_text("the cat\na dog\n")
    (tmp_path / "r").write_text("le chat\nun chien\n")
    from_lines = headcount.score(run_folder, sources, references, resamples=0)
    from_files = headcount.score(load_run(run_folder), tmp_path / "s", str(tmp_path / "r"))
    assert from_lines.bleu.value == from_files.bleu.value
    translated = headcount.translate(run_folder, sources)
    assert from_lines == score_lines(translated, references)


def test_files_that_do_not_match(tmp_path: Path) -> None:
    source, reference, empty = tmp_path / "s.en", tmp_path / "s.fr", tmp_path / "empty"
    source.write_text("a\nb\n")
    reference.write_text("a\n")
    empty.write_text("")
    with pytest.raises(UserError, match=r"s\.en has 2 lines, .*s\.fr has 1"):
        read_pair(source, reference)
    with pytest.raises(UserError, match="no lines"):
        read_pair(empty, empty)
    with pytest.raises(UserError, match="does not exist"):
        read_pair(source, tmp_path / "nowhere")
    reference.write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match="line 2: not valid UTF-8"):
        read_pair(source, reference)
