"""Blocks and what they hold, both with a number: against trying all choices of blocks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import UserError
from headcount.heads import ALL_SITES, BLOCKS, Head, HeadLayout
from headcount.pruning.by_score import ScoredHeads
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.selection import Quotas, own_blocks
from headcount.pruning.settings import budgets, make_settings
from headcount.pruning.top_k import TopKGates

CPU = torch.device("cpu")
LAYOUT = HeadLayout.full(3, 2, 3, 2, units=(4, 2))
keeps = st.fixed_dictionaries(
    {"enc": st.integers(0, 9), "enc_ff": st.integers(0, 12), "enc_layers": st.integers(0, 6)}
)
seeds = st.integers(0, 99)


def quotas_of(
    layout: HeadLayout, keep: Mapping[str, int], even: bool = False
) -> tuple[list[Head], list[list[int]], list[int]]:
    settings = make_settings(keep=dict(keep), even=even)
    return layout.heads(settings.sites), *budgets(settings, layout)


def scores_of(heads: list[Head], seed: int) -> dict[Head, float]:
    rng = random.Random(seed)
    return {head: rng.gauss(0, 1) for head in heads}


def is_open(head: Head, blocks: set[Head]) -> bool:
    """Whether the block of a head of the encoder is among these."""
    return Head("enc_layers", head.layer, BLOCKS["enc_layers"].index(head.site)) in blocks


def block_choices(keep: Mapping[str, int]) -> list[set[Head]]:
    """All choices of so many blocks in which everything has room."""
    return [
        set(blocks)
        for blocks in combinations(LAYOUT.heads(["enc_layers"]), keep["enc_layers"])
        if all(
            sum(is_open(head, set(blocks)) for head in LAYOUT.heads([site])) >= keep[site]
            for site in ("enc", "enc_ff")
        )
    ]


@given(keeps, seeds)
def test_the_best_blocks_with_room_and_the_best_in_them(keep: dict[str, int], seed: int) -> None:
    possible = block_choices(keep)
    if not possible:
        with pytest.raises(UserError, match="of the whole blocks at enc_layers, but only"):
            quotas_of(LAYOUT, keep)
        return
    heads, groups, numbers = quotas_of(LAYOUT, keep)
    scores = scores_of(heads, seed)
    best = max(possible, key=lambda blocks: sum(scores[block] for block in blocks))
    expected = set(best)
    for site in ("enc", "enc_ff"):
        there = [head for head in LAYOUT.heads([site]) if is_open(head, best)]
        expected |= set(sorted(there, key=lambda head: -scores[head])[: keep[site]])
    quotas = Quotas(heads, own_blocks(heads), groups, numbers)
    chosen = quotas.best(torch.tensor([scores[head] for head in heads]))
    assert {head for head, on in zip(heads, chosen.tolist(), strict=True) if on} == expected
    assert LAYOUT.keeping(expected, keep).heads(keep) == [h for h in heads if h in expected]


@given(keeps, seeds, st.booleans())
def test_every_method_with_a_number_keeps_it(keep: dict[str, int], seed: int, again: bool) -> None:
    """Also in a model that was pruned before, whose blocks hold different numbers."""
    rng = random.Random(seed)
    layout = LAYOUT
    if again:
        everything = LAYOUT.heads(ALL_SITES)
        layout = LAYOUT.keeping([h for h in everything if rng.random() < 0.7], ALL_SITES)
    keep = {site: min(number, layout.count(site)) for site, number in keep.items()}
    try:
        heads, groups, numbers = quotas_of(layout, keep)
    except UserError:
        return
    scores = scores_of(heads, seed)
    learned = TopKGates(heads, CPU, groups, numbers, updates=9)
    with torch.no_grad():
        learned.scores.copy_(torch.tensor([scores[head] for head in heads]))
    ranked = ScoredHeads(heads, CPU, groups, numbers, scores=scores, updates=9, steps=3)
    for selection in (learned, ranked):
        smaller = layout.keeping(selection.kept(), keep)
        assert smaller.heads(keep) == selection.kept()
        assert {site: smaller.count(site) for site in keep} == keep
    ranked.begin(9)
    assert ranked.metrics()["open"] == learned.metrics()["open"] == sum(keep.values())


@given(seeds)
def test_even_layers(seed: int) -> None:
    keep = {"enc": 6, "enc_ff": 9, "enc_layers": 6}
    heads, groups, numbers = quotas_of(LAYOUT, keep, even=True)
    selection = ScoredHeads(
        heads, CPU, groups, numbers, scores=scores_of(heads, seed), updates=9, steps=3
    )
    counts = Counter((head.site, head.layer) for head in selection.kept())
    assert set(counts.values()) == {2, 3}
    assert sum(counts.values()) == sum(keep.values())
    with pytest.raises(UserError, match=r"enc=2 needs 1 and enc_ff=3 needs 1 .* in layer 0, but"):
        quotas_of(LAYOUT, keep | {"enc_layers": 3}, even=True)


def test_the_largest_number_is_said() -> None:
    with pytest.raises(UserError, match=r"enc=7 needs 3 .* only 2 stay, which have room for 6"):
        quotas_of(LAYOUT, {"enc": 7, "enc_layers": 2})
    quotas_of(LAYOUT, {"enc": 6, "enc_layers": 2})


@given(keeps, seeds)
def test_learned_gates_end_at_the_choice(keep: dict[str, int], seed: int) -> None:
    """Cold gates are those of the exact choice: no budget is spent on what is in closed blocks."""
    if not block_choices(keep):
        return
    heads, groups, numbers = quotas_of(LAYOUT, keep)
    gates = TopKGates(heads, CPU, groups, numbers, updates=10, cold=1e-3)
    torch.manual_seed(seed)
    with torch.no_grad():
        gates.scores.copy_(torch.randperm(len(heads)).float())
    gates.begin(11)
    gates._noise.zero_()
    torch.testing.assert_close(gates.gates(), gates.is_open().float(), atol=0.02, rtol=0)
    gates.begin(5)
    gates.gates().sum().backward()
    assert gates.scores.grad is not None
    assert torch.isfinite(gates.scores.grad).all()


def test_open_gates_in_closed_blocks_are_not_there() -> None:
    sites = ("enc", "enc_ff", "enc_layers")
    heads = LAYOUT.heads(sites)
    gates = HardConcreteGates(heads, CPU, weight=0.1, warmup=1, patience=5, start=3.0)
    shut = {Head("enc_layers", 0, 0), Head("enc_layers", 2, 1), Head("enc", 1, 1)}
    with torch.no_grad():
        gates.logits[[heads.index(head) for head in shut]] = -9.0
    smaller = LAYOUT.keeping([head for head in heads if head not in shut], sites)
    assert gates.kept() == smaller.heads(sites)
    assert [*gates.kept(), *gates.closed()] != heads
    assert {*gates.kept(), *gates.closed()} == set(heads)
    metrics = gates.metrics()
    assert metrics["open"] == len(smaller.heads(sites)) == len(heads) - 3 - 3 - 4
    assert metrics["expected_open"] == pytest.approx(metrics["open"], abs=1)
