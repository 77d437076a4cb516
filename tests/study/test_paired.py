"""The paired bootstrap against sacreBLEU, and against differences whose answer is known."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU

from headcount.errors import UserError
from headcount.files import write_json
from headcount.study.score_model import (
    Difference,
    SentenceCounts,
    bleu_of,
    paired_difference,
    seed_half_width,
    unpaired_difference,
)

WORDS = ("the", "old", "man", "saw", "a", "small", "dog", "in", "his", "garden", "and", "it")


def sentences(number: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 14))) for _ in range(number)]


def damaged(lines: list[str], share: float, seed: int) -> list[str]:
    """Replace a share of the words."""
    rng = random.Random(seed)
    return [
        " ".join("x" if rng.random() < share else word for word in line.split()) for line in lines
    ]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_bleu_of_sums_is_sacrebleus(share: float) -> None:
    references = sentences(40, 1)
    translations = damaged(references, share, 2)
    counts = SentenceCounts.of(translations, references)
    for chosen in (range(40), range(7), range(3)):
        expected = BLEU(force=True).corpus_score(
            [translations[i] for i in chosen], [[references[i] for i in chosen]]
        )
        found = bleu_of(counts.counts[list(chosen)].sum(0))
        assert found == pytest.approx(expected.score, abs=1e-9)


def test_pairing_narrows_the_interval() -> None:
    """Two models that make nearly the same mistakes differ by a little, and surely so."""
    references = sentences(300, 3)
    good = damaged(references, 0.3, 4)
    worse = [line.replace("garden", "x") for line in good]
    better, other = (SentenceCounts.of(lines, references) for lines in (good, worse))
    found = paired_difference([other], [better])
    expected = bleu_of(other.counts.sum(0)) - bleu_of(better.counts.sum(0))
    assert found.value == pytest.approx(float(expected))
    assert found.low < found.value < found.high < 0
    halves = [_half_width(counts) for counts in (other, better)]
    bleus = [[float(bleu_of(counts.counts.sum(0)))] for counts in (other, better)]
    apart = unpaired_difference(bleus[0], halves[0], bleus[1], halves[1], 300)
    assert apart.value == pytest.approx(found.value)
    assert apart.half_width > 2 * found.half_width


def _half_width(counts: SentenceCounts) -> float:
    rng = np.random.default_rng(1)
    rows = rng.integers(len(counts.counts), size=(500, len(counts.counts)))
    values = bleu_of(counts.counts[rows].sum(1))
    return float(np.quantile(values, 0.975) - np.quantile(values, 0.025)) / 2


def test_equal_models_do_not_differ() -> None:
    references = sentences(50, 5)
    counts = SentenceCounts.of(damaged(references, 0.3, 6), references)
    found = paired_difference([counts], [counts])
    assert (found.value, found.low, found.high) == (0, 0, 0)


def test_seeds_widen_the_interval() -> None:
    """Two seeds that differ much: the interval knows that a third one may lie anywhere there."""
    references = sentences(200, 7)
    full = SentenceCounts.of(references, references)
    seeds = [SentenceCounts.of(damaged(references, s, 8), references) for s in (0.1, 0.5)]
    one = paired_difference([seeds[0]], [full])
    both = paired_difference(seeds, [full])
    assert both.half_width > 3 * one.half_width


def test_few_seeds_count_with_their_whole_spread() -> None:
    """No noise of sentences: Student's interval of the mean of two values."""
    references = ["one two three four five six"] * 40
    outputs = [["one two three four five seven"] * 40, ["one two three four eight seven"] * 40]
    seeds = [SentenceCounts.of(each, references) for each in outputs]
    full = SentenceCounts.of(references, references)
    found = paired_difference(seeds, [full])
    bleus = [float(bleu_of(each.counts.sum(0))) for each in seeds]
    assert found.half_width == pytest.approx(12.706 * abs(bleus[0] - bleus[1]) / 2)


@pytest.mark.parametrize("seeds", [2, 3, 5, 11])
def test_intervals_over_seeds_cover_the_truth(seeds: int) -> None:
    rng = np.random.default_rng(3)
    draws = rng.normal(40, 0.3, size=(4000, seeds))
    covered = [abs(each.mean() - 40) <= seed_half_width(each) for each in draws]
    assert np.mean(covered) == pytest.approx(0.95, abs=0.012)


def test_twins_are_compared_in_pairs() -> None:
    """Seeds that move both of a pair alike say nothing about their difference."""
    references = sentences(60, 3)
    pairs = [
        [SentenceCounts.of(damaged(references, s + more, 4), references) for s in (0.1, 0.4)]
        for more in (0.0, 0.05)
    ]
    together = paired_difference(*pairs, twins="aa")
    assert together.half_width < paired_difference(*pairs).half_width / 4


def test_twins_of_different_settings_are_no_seeds() -> None:
    """One setting gains much more than the other; how seeds differ is known of neither."""
    references = sentences(200, 5)
    scratch, little, much = (
        SentenceCounts.of(damaged(references, share, 6), references) for share in (0.5, 0.4, 0.1)
    )
    found = paired_difference([little, much], [scratch, scratch], twins="ab")
    assert found.of_seeds == 0
    assert found.low > 0
    seeds = paired_difference([little, much], [scratch, scratch], twins="aa")
    assert seeds.low < 0 < seeds.of_seeds
    more = paired_difference([little, much, little], [scratch] * 3, twins="aab")
    assert more.of_seeds == pytest.approx(2 / 3 * seeds.of_seeds)


def test_seeds_widen_an_unpaired_interval_too() -> None:
    one, two = (unpaired_difference(bleus, 0.5, [40.0], 0.5, 400) for bleus in ([35], [30, 40]))
    assert (one.value, one.of_seeds) == (-5, 0)
    assert two.of_seeds == pytest.approx(seed_half_width(np.array([30, 40])))
    assert two.half_width == pytest.approx(np.hypot(one.half_width, two.of_seeds))


def test_the_test_set_that_would_decide() -> None:
    found = Difference(value=-0.3, low=-1.1, high=0.5, sentences=400, paired=True)
    assert found.sentences_needed(-0.5) == 6400  # half width 0.8, gap 0.2: 16 times as many
    assert Difference(-0.5, -1.0, 0.0, 400, True).sentences_needed(-0.5) is None
    # 0.5 of a half width of 1.3 are seeds, so 1.2 sentences: more of them help down to 0.5 only.
    seeds = Difference(-2.0, -3.3, -0.7, 400, True, of_seeds=0.5)
    assert seeds.sentences_needed(-0.7) == 400
    assert seeds.sentences_needed(-1.0) == 770  # sqrt(1 - 0.25) of 1.2: 1.92 times as many
    assert seeds.sentences_needed(-1.55) is None


def test_files(tmp_path) -> None:
    references = sentences(5, 9)
    counts = SentenceCounts.of(references, references)
    counts.save(tmp_path / "a.json")
    loaded = SentenceCounts.load(tmp_path / "a.json")
    assert loaded.test_set == counts.test_set
    assert (loaded.counts == counts.counts).all()
    write_json(tmp_path / "b.json", {"counts": [[1, 2]], "test_set": "x"})
    with pytest.raises(UserError, match="no BLEU counts"):
        SentenceCounts.load(tmp_path / "b.json")
