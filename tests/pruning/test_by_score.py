"""Score-based pruning: the lowest go first, in steps, and the right number stays."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.heads import Head
from headcount.pruning.by_score import ScoredHeads

HEADS = [Head("enc", layer, index) for layer in range(2) for index in range(4)]
LAYERS = [[0, 1, 2, 3], [4, 5, 6, 7]]
values = st.lists(st.floats(-3, 3), min_size=8, max_size=8)


def make(
    scores: list[float],
    keep: int,
    steps: int = 4,
    updates: int = 40,
    groups: list[list[int]] | None = None,
) -> ScoredHeads:
    groups = groups or [list(range(8))]
    return ScoredHeads(
        HEADS,
        torch.device("cpu"),
        groups,
        [keep // len(groups)] * len(groups),
        scores=dict(zip(HEADS, scores, strict=True)),
        updates=updates,
        steps=steps,
    )


@given(values, st.integers(0, 8))
def test_the_best_stay(scores: list[float], keep: int) -> None:
    selection = make(scores, keep)
    kept = {HEADS.index(head) for head in selection.kept()}
    assert len(kept) == keep
    lowest_kept = min((scores[i] for i in kept), default=float("inf"))
    assert all(scores[i] <= lowest_kept for i in range(8) if i not in kept)


@given(values, st.integers(0, 8), st.integers(1, 10))
def test_masks_grow_to_the_choice(scores: list[float], keep: int, steps: int) -> None:
    """From the first step on something is masked; what is masked stays so; the last is all."""
    selection = make(scores, keep, steps)
    masks = []
    for update in range(1, 41):
        selection.begin(update)
        masks.append(selection.gates() == 0)
    for earlier, later in pairwise(masks):
        assert (later | ~earlier).all()
    assert torch.equal(~masks[-1], selection.is_open())
    assert int(masks[0].sum()) == -(-(8 - keep) // steps)
    sizes = {int(mask.sum()) for mask in masks}
    assert len(sizes) <= steps


def test_the_lowest_go_first() -> None:
    selection = make([5, 3, 8, 1, 7, 2, 6, 4], keep=4, steps=4)
    masked = []
    for update in (1, 11, 21, 31):
        selection.begin(update)
        masked.append(set((selection.gates() == 0).nonzero().flatten().tolist()))
    assert masked == [{3}, {3, 5}, {3, 5, 1}, {3, 5, 1, 7}]


@given(values, st.integers(0, 4))
def test_even_layers(scores: list[float], each: int) -> None:
    selection = make(scores, 2 * each, groups=LAYERS)
    kept = Counter(head.layer for head in selection.kept())
    assert (kept[0], kept[1]) == (each, each)
