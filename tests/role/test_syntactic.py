"""Instances, directions, and the margin over the baseline."""

from __future__ import annotations

import pytest
import torch

from headcount.role.kind import Setting, SiteBatch
from headcount.role.sentences import SentenceBatch
from headcount.role.syntactic import Arcs, SyntacticCounts, Words, meets


def test_every_instance_counts_once_in_each_direction() -> None:
    """A noun (word 2) with two adjectives (0 and 1) can look at one of them only."""
    arcs = Arcs(*torch.tensor([[0, 2, 0, 1], [0, 2, 1, 1], [1, 1, 0, 0]]).unbind(1))
    places = torch.tensor([[[2, 2, 0], [1, 1, 1]], [[1, 0, 0], [0, 0, 0]]])  # [batch, heads, words]
    counts = SyntacticCounts(Setting(8, groups=3, heads=4, relations=("nsubj", "amod")))
    groups = torch.tensor([2, 0])
    counts.add_words(slice(1, 3), places, arcs, groups)
    assert counts.names[1:3] == ["nsubj s → v", "amod noun → adj.m."]
    # [groups, heads, names] as [groups, relations, directions, heads]
    hits = counts.hits.transpose(1, 2).unflatten(1, (2, 2))
    assert hits[2, 1].tolist() == [[0, 1, 1, 0], [0, 2, 0, 0]]
    assert hits[0, 0].tolist() == [[0, 1, 1, 0], [0, 1, 0, 0]]
    assert hits.sum() == 7
    real = torch.ones(2, 3, dtype=torch.bool)
    sentences = SentenceBatch(torch.zeros(2, 3), real, groups, None, arcs)
    counts.begin(SiteBatch(real, real, groups, sentences))
    assert counts.totals.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 2, 2]]


def test_a_batch_without_instances_is_no_trouble() -> None:
    counts = SyntacticCounts(Setting(8, groups=1, heads=1, relations=("nsubj",)))
    none = Arcs(*torch.zeros(0, 4, dtype=torch.int64).unbind(1))
    words = Words(torch.tensor([0]), torch.zeros(1, 3, 0))
    weights, places = torch.rand(1, 1, 3, 3), torch.zeros(1, 1, 3, dtype=torch.int64)
    real, groups = torch.ones(1, 3, dtype=torch.bool), torch.tensor([0])
    batch = SiteBatch(real, real, groups, SentenceBatch(None, real, groups, words, none))
    counts.begin(batch)
    counts.add(slice(0, 1), weights, places, batch)
    assert counts.hits.sum() == 0
    assert counts.totals.sum() == 0


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
