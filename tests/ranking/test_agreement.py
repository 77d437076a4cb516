"""Rank correlations against scipy, and the bootstrap over sentences."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from headcount.heads import Head
from headcount.ranking.agreement import (
    agreement,
    bootstrap_draws,
    comparisons,
    correlations,
    groups_of,
    kendall,
    p_value,
    spearman,
)
from headcount.ranking.evidence import Evidence

COLUMN = st.lists(st.integers(-3, 3), min_size=3, max_size=9)  # small numbers, so that ties occur


@given(COLUMN, st.integers(0, 2**32 - 1))
def test_spearman_and_kendall_are_scipys(column, seed):
    other = np.random.default_rng(seed).integers(-3, 4, len(column))
    signs = [comparisons(torch.tensor(c, dtype=torch.float64)) for c in (column, other.tolist())]
    if len(set(column)) == 1 or len(set(other.tolist())) == 1:
        assert spearman(*signs).isnan()
        assert kendall(*signs).isnan()
        return
    assert float(spearman(*signs)) == pytest.approx(stats.spearmanr(column, other).statistic)
    assert float(kendall(*signs)) == pytest.approx(stats.kendalltau(column, other).statistic)


def test_groups_are_layers_their_mean_sites_and_all():
    heads = [Head("enc", layer, i) for layer in range(2) for i in range(5)]
    heads += [Head("enc", 2, i) for i in range(4)] + [Head("cross", 0, 0)]  # too few of their own
    groups = groups_of(heads)
    first, second = list(range(5)), list(range(5, 10))
    assert groups == {
        "enc.0": [first],
        "enc.1": [second],
        "enc.*": [first, second],
        "enc": [list(range(14))],
        "all": [list(range(15))],
    }
    assert "all" not in groups_of(heads[:14])
    assert groups_of(heads[10:14]) == {}


@pytest.mark.parametrize("sizes", [[5], [5, 5]])
def test_p_values_are_those_of_all_orders_of_the_heads(sizes):
    """Against every permutation of five heads, or of two layers of five."""
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, sum(sizes)))
    second += 0.7 * first
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])

    def rhos(part):
        orders = permutations(part)
        return [stats.spearmanr(first[part], second[list(order)]).statistic for order in orders]

    means = np.array([np.mean(combined) for combined in product(*map(rhos, parts))])
    seen = np.mean([stats.spearmanr(first[part], second[part]).statistic for part in parts])
    exact = np.mean(np.abs(means) >= abs(seen) - 1e-9)
    values = torch.tensor(first), torch.tensor(second)
    found = p_value(*values, [part.tolist() for part in parts], shuffles=20_000, seed=1)
    assert found == pytest.approx(exact, abs=0.01)
    assert 0.02 < exact < 0.9


def test_p_values_that_say_nothing():
    a, b = torch.arange(5.0), torch.ones(5)
    assert p_value(a, b, [[0, 1, 2, 3, 4]], 100, 1) is None  # all alike
    assert p_value(a, a, [[0, 1, 2, 3, 4]], 0, 1) is None
    assert p_value(a, a, [[0, 1, 2, 3, 4]], 100, 1) >= 1 / 101  # never zero


def test_the_mean_over_layers_leaves_out_layers_without_differences():
    first = torch.tensor([[1.0, 2.0, 3.0, 5.0, 5.0, 5.0]])
    second = torch.tensor([[1.0, 3.0, 2.0, 1.0, 2.0, 3.0]])
    found = correlations(first, second, [[0, 1, 2], [3, 4, 5]])
    assert found[0].tolist() == pytest.approx([0.5])


def test_draws_are_samples_with_replacement():
    draws = bootstrap_draws(7, 50)
    assert draws.shape == (50, 7)
    assert (draws.sum(1) == 7).all()
    assert (draws == bootstrap_draws(7, 50)).all()
    assert not (draws == bootstrap_draws(7, 50, seed=2)).all()


def test_intervals_come_from_values_of_resampled_sentences():
    rng = torch.Generator().manual_seed(3)
    heads = [Head("enc", 0, i) for i in range(6)]
    sentences = 20
    evidence = {}
    for name in ("a", "b"):
        counts = torch.randint(1, 9, (sentences, 6), generator=rng).double()
        sums = counts * torch.rand(sentences, 6, generator=rng, dtype=torch.float64)
        evidence[name] = Evidence(sums, counts)
    fixed = {"c": torch.arange(6).double()}
    rows = {(r.first, r.second): r for r in agreement(evidence, fixed, heads, replicates=60, seed=4)
            if r.group == "enc"}  # fmt: skip
    assert set(rows) == {("a", "b"), ("a", "c"), ("b", "c")}
    draws = bootstrap_draws(sentences, 60, seed=4)
    slow = []
    for draw in draws:
        chosen = [i for i, times in enumerate(draw.int().tolist()) for _ in range(times)]
        columns = [
            (e.sums[chosen].sum(0) / e.counts[chosen].sum(0)).numpy() for e in evidence.values()
        ]
        slow.append([stats.spearmanr(*columns).statistic, stats.kendalltau(*columns).statistic])
    low, high = np.quantile(slow, [0.025, 0.975], axis=0)
    row = rows["a", "b"]
    assert row.spearman_interval == pytest.approx((low[0], high[0]))
    assert row.kendall_interval == pytest.approx((low[1], high[1]))
    values = [e.values().numpy() for e in evidence.values()]
    assert row.spearman == pytest.approx(stats.spearmanr(*values).statistic)
    assert row.heads == 6
    assert row.p_value is not None
