"""The diagonal of two sentences, and offsets from it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.roles.cross import DiagonalCounts, diagonal


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
    aligned = torch.tensor([[0, 1, 2], [0, 2, 9]])
    queries = torch.tensor([[True, True, True], [True, True, False]])
    places = torch.tensor([[[0, 1, 2], [1, 2, 3]], [[0, 0, 0], [7, 3, 0]]])
    counts = DiagonalCounts(groups=2, heads=2, longest=10)
    groups = torch.tensor([0, 1])
    counts.add(slice(0, 2), places, queries, aligned, groups)
    counts.add_queries(queries, aligned, torch.tensor([4, 8]), groups)
    reach = counts.reach
    assert counts.hits.sum(0)[0, [reach - 2, reach]].tolist() == [1, 4]
    assert counts.hits.sum(0)[1, [reach + 1, reach + 5]].tolist() == [4, 0]  # +7 is out of reach
    assert counts.distances.tolist() == [[-2, 2], [11, 11]]
    assert counts.queries.tolist() == [3, 2]


def test_chance_by_going_through_all_queries() -> None:
    sources, targets = [3, 7], [4, 2]
    steps = max(targets)
    queries = torch.arange(steps) < torch.tensor(targets)[:, None]
    aligned = diagonal(torch.tensor(sources), torch.tensor(targets), steps)
    counts = DiagonalCounts(groups=1, heads=1, longest=8)
    counts.add_queries(queries, aligned, torch.tensor(sources), torch.tensor([0, 0]))
    for offset in range(-5, 6):
        chances = [
            1 / n if 0 <= int((t + 0.5) * n / m) + offset < n else 0
            for n, m in zip(sources, targets, strict=True)
            for t in range(m)
        ]
        found = counts.chance_shares()[offset + counts.reach]
        assert found == pytest.approx(sum(chances) / len(chances))
