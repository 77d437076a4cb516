"""Normalisation over a layer and sums over steps."""

from __future__ import annotations

import pytest
import torch

from headcount.ranking.lrp.relevance import head_relevance, layer_shares


def test_shares_of_a_layer():
    relevance = torch.tensor([3.0, -1.0, 2.0])
    signed, usable = layer_shares(relevance, "signed")
    assert signed.tolist() == pytest.approx([0.75, -0.25, 0.5])
    assert bool(usable)
    absolute, _ = layer_shares(relevance, "absolute")
    assert absolute.tolist() == pytest.approx([1 / 2, 1 / 6, 1 / 3])


def test_the_scale_and_sign_of_a_start_do_not_matter():
    relevance = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    for normalise in ("signed", "absolute"):
        shares, _ = layer_shares(relevance, normalise)
        again, _ = layer_shares(-7.5 * relevance, normalise)
        torch.testing.assert_close(shares, again)


def test_heads_that_cancel_are_counted_and_left_out():
    cancelling = [5.0, -5.0 + 1e-4]
    relevance = torch.tensor(
        [[[1.0, 3.0], cancelling, [2.0, 2.0]], [[1.0, 0.0], [9.0, 9.0], cancelling]]
    )
    steps = [3, 1]  # the second sentence has one step; what stands behind it does not count
    found = head_relevance({("enc", 0): relevance}, [("enc", 0)], steps, "signed")
    assert found.sums.tolist() == [[0.75, 1.25], [1.0, 0.0]]
    assert found.counts.tolist() == [[2, 2], [1, 1]]
    assert found.unusable.tolist() == [1]


def test_a_layer_without_any_relevance_counts_for_nothing():
    found = head_relevance({("enc", 0): torch.zeros(1, 2, 3)}, [("enc", 0)], [2], "absolute")
    assert not found.sums.any()
    assert not found.counts.any()
    assert found.unusable.tolist() == [2]
