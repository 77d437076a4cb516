"""Bootstrap intervals: the draws, the groups, and whether they are as wide as they should be."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.bootstrap import GROUPS, Bootstrap, divide, groups_for


def test_sums_are_those_of_the_sentences_drawn() -> None:
    rng = np.random.default_rng(3)
    hits = rng.integers(0, 4, size=(7, 2, 3))
    totals = hits + rng.integers(0, 3, size=hits.shape)
    bootstrap = Bootstrap.seeded(7, replicates=5)
    assert (bootstrap.draws.sum(1) == 7).all()
    ratios = bootstrap.ratios(hits, totals)
    for replicate, draws in enumerate(bootstrap.draws.astype(int)):
        drawn = [group for group, times in enumerate(draws) for _ in range(times)]
        expected = divide(sum(hits[g] for g in drawn), sum(totals[g] for g in drawn))
        np.testing.assert_allclose(ratios[replicate], expected)


@pytest.mark.parametrize("sentences", [400, 30_000])
def test_intervals_are_as_wide_as_theory_says(sentences: int) -> None:
    """For independent sentences of one instance each, the spread is the binomial one."""
    hits = np.random.default_rng(5).random(sentences) < 0.3
    groups = groups_for(sentences)
    by_group, totals = np.zeros(groups, dtype=int), np.zeros(groups, dtype=int)
    np.add.at(by_group, np.arange(sentences) % GROUPS, hits)
    np.add.at(totals, np.arange(sentences) % GROUPS, 1)
    bootstrap = Bootstrap.seeded(groups)
    low, high = bootstrap.bounds(bootstrap.ratios(by_group, totals))
    share = hits.mean()
    theory = 2 * 1.96 * np.sqrt(share * (1 - share) / sentences)
    assert low < share < high
    assert (high - low) == pytest.approx(theory, rel=0.12)


def test_what_was_never_counted_has_no_interval() -> None:
    bootstrap = Bootstrap.seeded(4, replicates=10)
    hits = np.array([[1, 0], [0, 0], [1, 0], [1, 0]])
    totals = np.array([[1, 0], [1, 0], [1, 0], [1, 0]])
    low, high = bootstrap.bounds(bootstrap.ratios(hits, totals))
    assert low[0] <= 0.75 <= high[0]
    assert np.isnan(low[1])
    assert np.isnan(high[1])


def test_the_same_seed_gives_the_same_draws() -> None:
    first, second = Bootstrap.seeded(50, seed=4), Bootstrap.seeded(50, seed=4)
    assert (first.draws == second.draws).all()
    assert (first.draws != Bootstrap.seeded(50, seed=5).draws).any()


def test_groups() -> None:
    assert [groups_for(n) for n in (0, 1, 999, 1000, 5000)] == [1, 1, 999, GROUPS, GROUPS]
