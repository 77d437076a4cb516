"""Distributions of offsets, the baseline, and the figure."""

from __future__ import annotations

import numpy as np
import pytest

from headcount.role.relations import (
    RelativePositions,
    baseline_shares,
    distributions_csv,
    draw_distributions,
    most_frequent,
)


def test_counts_by_group_and_in_all() -> None:
    offsets = RelativePositions(groups=3, relations=2)
    for group, relation, offset in [(0, 0, -1), (2, 0, -1), (2, 0, 900), (1, 0, -1)]:
        offsets.add(group, relation, offset)
    assert offsets.distribution(0) == {-1: 3, 900: 1}
    assert offsets.distribution(1) == {}
    places, table = offsets.table(0)
    assert places == [-1, 900]
    assert table.tolist() == [[1, 0], [1, 0], [1, 1]]


def test_the_baseline_is_the_share_of_the_most_frequent_offset() -> None:
    assert baseline_shares(np.array([[1, 3], [2, 2]])).tolist() == [0.75, 0.5]
    assert np.isnan(baseline_shares(np.zeros((2, 0)))).all()
    assert most_frequent({-1: 4, 2: 5, 3: 1}) == 2
    assert most_frequent({-3: 4, 1: 4}) == 1
    assert most_frequent({}) is None


def test_data_and_figure() -> None:
    distributions = {"nsubj": {-2: 1, -1: 3}, "obj": {1: 2}, "amod": {}}
    lines = distributions_csv(distributions).splitlines()
    assert lines[0] == "relation,offset,count,share"
    assert lines[1:] == ["nsubj,-2,1,0.250000", "nsubj,-1,3,0.750000", "obj,1,2,1.000000"]
    figure = draw_distributions(distributions)
    assert [plot.get_title() for plot in figure.axes] == ["nsubj (4)", "obj (2)"]
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert sum(heights) == pytest.approx(1.0)
    assert max(heights) == 0.75
    assert not draw_distributions({}).axes
