"""Instances, directions, and the margin over the baseline."""

from __future__ import annotations

import pytest
import torch

from headcount.roles.syntactic import Arcs, SyntacticCounts, Words, meets


def test_every_instance_counts_once_in_each_direction() -> None:
    """A noun (word 2) with two adjectives (0 and 1) can look at one of them only."""
    arcs = Arcs(*torch.tensor([[0, 2, 0, 1], [0, 2, 1, 1], [1, 1, 0, 0]]).unbind(1))
    places = torch.tensor([[[2, 2, 0], [1, 1, 1]], [[1, 0, 0], [0, 0, 0]]])  # [batch, heads, words]
    counts = SyntacticCounts(groups=3, relations=2, heads=4)
    counts.add_places(slice(1, 3), places, arcs, torch.tensor([2, 0]))
    hits = counts.hits  # [groups, relations, directions, heads]
    assert hits[2, 1].tolist() == [[0, 1, 1, 0], [0, 2, 0, 0]]
    assert hits[0, 0].tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    assert hits.sum() == 7


def test_a_batch_without_instances_is_no_trouble() -> None:
    counts = SyntacticCounts(groups=1, relations=1, heads=1)
    none = Arcs(*torch.zeros(0, 4, dtype=torch.int64).unbind(1))
    words = Words(torch.tensor([0]), torch.zeros(1, 3, 0))
    weights, places = torch.rand(1, 1, 3, 3), torch.zeros(1, 1, 3, dtype=torch.int64)
    counts.add(slice(0, 1), weights, places, words, none, torch.tensor([0]))
    assert counts.hits.sum() == 0


@pytest.mark.parametrize(
    ("accuracy", "baseline", "relative", "expected"),
    [
        (0.45, 0.35, False, True),  # exactly ten points, whatever the rounding
        (0.30, 0.20, False, True),
        (0.449, 0.35, False, False),
        (0.385, 0.35, True, True),  # exactly ten per cent
        (0.38, 0.35, True, False),
        (0.90, 0.85, True, False),
    ],
)
def test_ten_points_or_ten_per_cent(
    accuracy: float, baseline: float, relative: bool, expected: bool
) -> None:
    assert meets(accuracy, baseline, 0.10, relative) is expected
