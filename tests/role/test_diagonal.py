"""The diagonal of two sentences, and offsets from it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.model.attention import REACH
from headcount.role.diagonal import DiagonalCounts, diagonal
from headcount.role.kind import Setting, SiteBatch


@given(st.integers(1, 60), st.integers(1, 60))
def test_the_diagonal_goes_from_corner_to_corner(source: int, target: int) -> None:
    places = diagonal(torch.tensor([source]), torch.tensor([target]), target)[0].tolist()
    assert places == [int((t + 0.5) * source / target) for t in range(target)]
    assert all(0 <= place < source for place in places)
    assert places == sorted(places)
    # Read backwards it is the same line, up to the rounding.
    mirrored = [source - 1 - place for place in reversed(places)]
    assert all(abs(a - b) <= 1 for a, b in zip(places, mirrored, strict=True))
    if source == target:
        assert places == list(range(source))


def test_offsets_and_distances() -> None:
    queries = torch.tensor([[True, True, True], [True, True, False]])
    keys = torch.arange(8) < torch.tensor([3, 4])[:, None]  # diagonals: 0, 1, 2 and 1, 3
    places = torch.tensor([[[0, 1, 2], [1, 2, 3]], [[1, 1, 0], [8, 4, 0]]])
    counts = DiagonalCounts(Setting(10, site="cross", groups=2, heads=2))
    batch = SiteBatch(queries, keys, torch.tensor([0, 1]), None)
    counts.begin(batch)
    counts.add(slice(0, 2), torch.empty(0), places, batch)
    assert counts.hits.sum(0)[0, [REACH - 2, REACH]].tolist() == [1, 4]
    assert counts.hits.sum(0)[1, [REACH + 1, REACH + 5]].tolist() == [4, 0]  # +7 is out of reach
    assert counts.more() == {"mean offset": [-2 / 5, 11 / 5], "mean distance": [2 / 5, 11 / 5]}
    assert counts.totals[:, 0].tolist() == [3, 2]


def test_chance_by_going_through_all_queries() -> None:
    sources, targets = [3, 7], [4, 2]
    steps = max(targets)
    queries = torch.arange(steps) < torch.tensor(targets)[:, None]
    keys = torch.arange(max(sources)) < torch.tensor(sources)[:, None]
    counts = DiagonalCounts(Setting(8, site="cross", groups=1, heads=1))
    counts.begin(SiteBatch(queries, keys, torch.tensor([0, 0]), None))
    for offset in range(-5, 6):
        chances = [
            1 / n if 0 <= int((t + 0.5) * n / m) + offset < n else 0
            for n, m in zip(sources, targets, strict=True)
            for t in range(m)
        ]
        found = counts.baselines()[offset + REACH]
        assert found == pytest.approx(sum(chances) / len(chances))
