"""Shares of offsets, and what chance would give."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headcount.bootstrap import Interval
from headcount.role import ROLES
from headcount.role.head_roles import Criteria
from headcount.role.kind import Setting, SiteBatch
from headcount.role.positional import OFFSET_NAMES, PositionalCounts, chance_shares


def test_only_queries_with_room_for_an_offset_count() -> None:
    """A head that always looks one back scores 1 in sentences of any length."""
    queries = torch.tensor([[True] * 2 + [False] * 4, [True] * 5 + [False]])
    places = (torch.arange(6) - 1).clamp(min=0).expand(2, 3, 6)
    counts = PositionalCounts(Setting(8, groups=4, heads=5))
    batch = SiteBatch(queries, queries, torch.tensor([0, 3]), None)
    counts.begin(batch)
    counts.add(slice(1, 4), torch.empty(0), places, batch)
    back = OFFSET_NAMES.index("-1")
    assert counts.totals[:, back].tolist() == [1, 0, 0, 4]
    assert counts.hits[:, 1:4, back].sum(0).tolist() == [5, 5, 5]
    assert counts.hits[:, [0, 4]].sum() == 0
    assert counts.lengths.tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("causal", [False, True])
def test_chance_by_going_through_all_queries(causal: bool) -> None:
    lengths = np.array([2, 3, 0, 1, 0, 4, 0, 0, 2])
    shares = chance_shares(lengths, reach=5, causal=causal)
    for offset in range(-5, 6):
        chances = [
            (0 if causal and offset > 0 else 1 / (i + 1 if causal else n))
            for n, number in enumerate(lengths)
            for _ in range(number)
            for i in range(n)
            if 0 <= i + offset < n
        ]
        assert shares[offset + 5] == pytest.approx(sum(chances) / len(chances))


def test_an_offset_that_no_query_has_room_for_has_no_share() -> None:
    shares = chance_shares(np.array([0, 0, 7]), reach=2)
    assert np.isnan(shares[[0, 4]]).all()
    assert shares[1:4].tolist() == [0.5, 0.5, 0.5]


def test_one_of_one_is_no_habit() -> None:
    """Short text has few queries with room for a far offset: those do not outdo a near one."""
    scores = {"-1": Interval(0.95, 0.9, 1.0), "+5": Interval(1.0, 1.0, 1.0)}
    met = ROLES["positional"].met
    assert met(scores, {}, {"-1": 15, "+5": 1}, Criteria()) == ["-1"]
    assert met(scores, {}, {"-1": 4, "+5": 1}, Criteria()) == []
    assert met(scores, {}, {"-1": 15, "+5": 11}, Criteria()) == ["+5"]
