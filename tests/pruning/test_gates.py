"""Learned gates: their penalty, its warm-up, when they have settled, and their state."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from headcount.heads import Head, HeadLayout
from headcount.pruning.gates import HardConcreteGates

CPU = torch.device("cpu")
HEADS = [Head("enc", layer, index) for layer in range(2) for index in range(3)]


def make(**changes: float) -> HardConcreteGates:
    given = {"weight": 0.1, "warmup": 10, "patience": 5, "start": 2.5} | changes
    gates = HardConcreteGates(HEADS, torch.device("cpu"), **given)  # type: ignore[arg-type]
    gates.begin(1)
    return gates


def put(gates: HardConcreteGates, *logits: float) -> None:
    with torch.no_grad():
        gates.logits.copy_(torch.tensor(logits))


def test_nearly_open_at_the_start() -> None:
    gates = make()
    assert gates.kept() == HEADS
    torch.manual_seed(0)
    drawn = []
    for update in range(1, 400):
        gates.begin(update)
        drawn.append(gates.gates().detach())
    assert float(torch.stack(drawn).mean()) > 0.9


def test_penalty_is_the_weighted_sum_of_open_probabilities() -> None:
    gates = make(weight=0.3)
    put(gates, -3, -1, 0, 0.5, 1, 4)
    gates.begin(10)
    expected = 0.3 * sum(
        float(gates.distribution.open_probability(torch.tensor(x)))
        for x in (-3.0, -1.0, 0.0, 0.5, 1.0, 4.0)
    )
    assert gates.penalty().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_a_head_in_a_closed_block_costs_nothing(seed: int) -> None:
    """The expected penalty over all states, in which a head counts if its block is open too."""
    sites = ("enc", "enc_ff", "enc_layers")
    layout = HeadLayout.full(2, 1, 2, 1, units=(1, 1))
    heads = [head for head in layout.heads(sites) if head != Head("enc_layers", 1, 0)]
    gates = HardConcreteGates(heads, CPU, weight=0.3, warmup=0, patience=5, start=2.5)
    put(gates, *torch.randn(len(heads), generator=torch.Generator().manual_seed(seed)).tolist())
    gates.begin(1)
    probabilities = gates.distribution.open_probability(gates.logits.detach()).double()
    expected = 0.0
    for state in product((0, 1), repeat=len(heads)):
        there = torch.tensor(state)
        weight = float(torch.where(there > 0, probabilities, 1 - probabilities).prod())
        open_heads = [head for head, on in zip(heads, state, strict=True) if on]
        always = [Head("enc_layers", 1, 0)]  # this block has no gate
        smaller = layout.keeping([*open_heads, *always], sites)
        expected += 0.3 * weight * (len(smaller.heads(sites)) - 1)
    assert gates.penalty().item() == pytest.approx(expected, rel=1e-5)
    assert gates.metrics()["expected_open"] == pytest.approx(expected / 0.3, rel=1e-5)


def test_closing_a_block_saves_what_it_holds() -> None:
    heads = HeadLayout.full(1, 1, 3, 1, units=(1, 1)).heads(("enc", "enc_layers"))
    gates = HardConcreteGates(heads, CPU, weight=1.0, warmup=0, patience=5, start=9.0)
    gates.begin(1)
    full = gates.penalty().item()
    with torch.no_grad():
        gates.logits[heads.index(Head("enc_layers", 0, 0))] = -9.0
    assert full - gates.penalty().item() == pytest.approx(4, abs=0.01)


@pytest.mark.parametrize(("update", "share"), [(1, 0.1), (5, 0.5), (10, 1), (500, 1)])
def test_penalty_warms_up(update: int, share: float) -> None:
    gates, full = make(), make(warmup=0)
    gates.begin(update)
    assert gates.penalty().item() == pytest.approx(share * full.penalty().item(), rel=1e-6)


def test_gradient_of_the_penalty_against_differences() -> None:
    gates = make(weight=0.7)
    gates.logits.data = gates.logits.data.double()
    values = torch.tensor([-3, -1, 0, 0.5, 1, 4], dtype=torch.float64)
    gates.begin(7)

    def penalty(logits: torch.Tensor) -> torch.Tensor:
        gates.logits.data = logits
        return gates.penalty()

    penalty(values.clone()).backward()
    assert gates.logits.grad is not None
    for i in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[i] = 1e-6
        with torch.no_grad():
            slope = (penalty(values + step) - penalty(values - step)) / 2e-6
        assert float(gates.logits.grad[i]) == pytest.approx(float(slope), rel=1e-5)


def test_noise_follows_the_seed_and_changes_with_it() -> None:
    one, other = make(), make()
    drawn = []
    for gates, seed in ((one, 1), (other, 1), (one, 2)):
        put(gates, *[0.0] * 6)
        torch.manual_seed(seed)
        gates.begin(3)
        drawn.append(gates.gates())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert torch.equal(one.gates(), one.gates()), "one sample an update"


def test_settled_after_a_quiet_time() -> None:
    gates = make(warmup=4, patience=5)
    put(gates, -4, 4, -4, 4, -4, 4)
    seen = []
    for update in range(2, 16):
        gates.begin(update)
        seen.append((update, gates.settled()))
        if update == 6:
            put(gates, 4, 4, -4, 4, -4, 4)  # seen at update 7: five more must be quiet
    assert dict(seen)[11] is False
    assert dict(seen)[12] is True


def test_undecided_gates_never_settle() -> None:
    gates = make(warmup=0, patience=2)
    put(gates, -4, 0.1, -4, 4, -4, 4)
    for update in range(2, 30):
        gates.begin(update)
    assert not gates.settled()
    assert gates.undecided() == [HEADS[1]]
    assert gates.metrics()["undecided"] == 1
    assert gates.metrics()["open"] == 3


def test_state_goes_round() -> None:
    gates = make(warmup=4, patience=5)
    put(gates, -4, 4, -4, 4, -4, 4)
    for update in range(2, 11):
        gates.begin(update)
    again = make(warmup=4, patience=5, start=0.0)
    again.load_state(gates.state())
    assert torch.equal(again.logits, gates.logits)
    for update in range(11, 14):
        gates.begin(update)
        again.begin(update)
        assert gates.settled() == again.settled()
    assert again.metrics() == gates.metrics()
