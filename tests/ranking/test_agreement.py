"""Rank correlations against scipy, and the bootstrap over sentences."""

from __future__ import annotations

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
    heads = [Head("enc", 0, 0), Head("enc", 0, 1), Head("enc", 1, 0), Head("enc", 1, 2)]
    heads += [Head("cross", 0, 0)]
    groups = groups_of(heads)
    assert groups == {
        "enc.0": [[0, 1]],
        "enc.1": [[2, 3]],
        "enc.*": [[0, 1], [2, 3]],
        "enc": [[0, 1, 2, 3]],
        "all": [[0, 1, 2, 3, 4]],
    }
    assert "all" not in groups_of(heads[:4])


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
    chance = torch.Generator().manual_seed(3)
    heads = [Head("enc", 0, i) for i in range(6)]
    sentences = 20
    evidence = {}
    for name in ("a", "b"):
        counts = torch.randint(1, 9, (sentences, 6), generator=chance).double()
        sums = counts * torch.rand(sentences, 6, generator=chance, dtype=torch.float64)
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
