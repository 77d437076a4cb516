"""Gates that open as the time allows: against trying them one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from headcount.bench.costs import Costs, Sizes
from headcount.heads import ALL_SITES, HeadLayout
from headcount.pruning.timed import TimedGates

HELD = ("enc", "enc_ff", "dec", "cross", "dec_ff")


def make_gates(
    costs: Costs, speedup: float, layout: HeadLayout, seed: int, sites: Sequence[str]
) -> TimedGates:
    gates = TimedGates(
        layout.heads(sites), torch.device("cpu"),
        costs=replace(costs, full=costs.seconds(layout)), layout=layout, speedup=speedup,
        updates=100, warmup=0, patience=20, start=2.5,
    )  # fmt: skip
    with torch.no_grad():
        rng = torch.Generator().manual_seed(seed)
        gates.logits.copy_(2 * torch.randn(len(gates.heads), generator=rng))
    return gates


def one_by_one(gates: TimedGates) -> torch.Tensor:
    """The choice of `TimedGates.is_open`, with all gates tried in turn: `[heads]`."""
    there = gates.there(gates.distribution.open_probability(gates.logits.detach()))
    holders = {block for unit, block in enumerate(gates.blocks) if unit != block}
    chosen = torch.zeros(len(gates.heads))
    for gate in torch.sort(there, descending=True, stable=True).indices.tolist():
        if gate in holders:
            continue
        more = chosen.clone()
        more[[gate, gates.blocks[gate]]] = 1.0
        if float(gates.costs.expected(gates._sizes(more))) <= gates.goal * gates.costs.full:
            chosen = more
    return chosen.bool()


@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
@pytest.mark.parametrize("seed", range(12))
def test_gates_open_as_if_they_were_tried_one_by_one(engine: str, seed: int) -> None:
    rng = random.Random(seed)
    full = HeadLayout.full(rng.randint(1, 3), rng.randint(1, 2), 4, 2, units=(6, 5))
    stays = [head for head in full.heads(ALL_SITES) if rng.random() < 0.9]
    layout = full.keeping(stays, ALL_SITES)  # of a model that has been pruned before
    sites = [site for site in ALL_SITES if rng.random() < 0.7 and layout.count(site)] or ["enc"]

    def prices() -> Mapping[str, float]:
        return {site: rng.choice([0.0, rng.random()]) for site in HELD}

    moves, rest = rng.random() < 0.5, rng.random()
    costs = Costs(engine, 1, 4, 5, moves, 1.0, rest, prices(), prices())
    for speedup in (1.05, 1.3, 2.0):
        gates = make_gates(costs, speedup, layout, seed, sites)
        assert torch.equal(gates.is_open(), one_by_one(gates))


class Counting(Costs):
    """A price list that counts how often it is asked."""

    asked = 0

    def expected(self, sizes: Sizes) -> torch.Tensor:
        Counting.asked += 1
        return super().expected(sizes)


@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
def test_few_sums_are_needed(engine: str) -> None:
    layout = HeadLayout.full(4, 4, 8, 8, units=(32, 32))
    ones = dict.fromkeys(HELD, 1.0)
    costs = Costs(engine, 1, 4, 5, True, 1.0, 100.0, ones, ones)
    gates = make_gates(costs, 1.5, layout, 1, ALL_SITES)
    gates.costs = Counting(**gates.costs.to_json())
    Counting.asked = 0
    gates.is_open()
    assert 0 < Counting.asked < len(gates.heads) / 4
