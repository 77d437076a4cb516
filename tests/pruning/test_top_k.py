"""Exactly K: the relaxed top-k against its definition, and gates that always end with K."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from headcount.heads import Head
from headcount.pruning.selection import hard_top_k
from headcount.pruning.top_k import TopKGates, gumbel, soft_top_k

scores = st.lists(st.floats(-30, 30), min_size=1, max_size=20)
temperatures = st.sampled_from([5.0, 1.0, 0.3, 0.05])
shares = st.floats(0, 1)


def double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def sequential_top_k(values: Tensor, k: int, temperature: float) -> Tensor:
    """Li, Cotterell & Sachan 2021 (after Xie & Ermon 2019): K softmaxes, one after the other."""
    total = torch.zeros_like(values)
    for _ in range(k):
        share = torch.softmax(values / temperature, 0)
        total = total + share
        values = values + torch.log((1 - share).clamp(min=1e-300))
    return total


@given(scores, shares, temperatures)
def test_gates_sum_to_k(values: list[float], share: float, temperature: float) -> None:
    k = share * len(values)
    gates = soft_top_k(double(values), k, temperature)
    assert float(gates.sum()) == pytest.approx(k, abs=1e-6)
    assert ((gates >= 0) & (gates <= 1)).all()


@given(scores, temperatures)
def test_none_and_all_are_exact(values: list[float], temperature: float) -> None:
    assert soft_top_k(double(values), 0, temperature).tolist() == [0] * len(values)
    assert soft_top_k(double(values), len(values), temperature).tolist() == [1] * len(values)


@given(scores, shares, temperatures)
def test_better_scores_have_larger_gates(
    values: list[float], share: float, temperature: float
) -> None:
    gates = soft_top_k(double(values), share * len(values), temperature)
    order = torch.argsort(double(values))
    assert (gates[order].diff() >= -1e-12).all()


@given(st.lists(st.integers(-20, 20), min_size=2, max_size=8, unique=True), st.data())
def test_cold_gates_are_the_hard_choice(values: list[int], data: st.DataObject) -> None:
    """And so are those of the paper's relaxation: both are the same in the limit."""
    k = data.draw(st.integers(1, len(values)))
    given_scores = double([float(v) for v in values])
    hard = hard_top_k(given_scores, k).double()
    torch.testing.assert_close(soft_top_k(given_scores, k, 0.01), hard)
    torch.testing.assert_close(sequential_top_k(given_scores, k, 0.01), hard, atol=1e-6, rtol=0)


def test_a_clear_leader_is_not_chosen_twice() -> None:
    """Why the relaxation is another than the paper's, whose gates can exceed 1."""
    values = double([20.0, 0.0, 0.0, 0.0, 0.0])
    assert float(sequential_top_k(values, 3, 1.0)[0]) > 1.5
    assert float(soft_top_k(values, 3, 1.0)[0]) <= 1


@pytest.mark.parametrize("k", [0.4, 1, 2.5, 4])
@pytest.mark.parametrize("temperature", [2.0, 0.5])
def test_gradient_against_differences(k: float, temperature: float) -> None:
    values = double([0.3, -1.0, 2.0, 0.1, 0.9]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: soft_top_k(x, k, temperature), (values,), atol=1e-6)


def test_gates_only_trade() -> None:
    values = double([0.3, -1.0, 2.0, 0.1]).requires_grad_()
    gates = soft_top_k(values, 2, 0.5)
    (slopes,) = torch.autograd.grad(gates[0], values)
    assert float(slopes.sum()) == pytest.approx(0, abs=1e-9)
    assert slopes[0] > 0
    assert (slopes[1:] < 0).all()


@given(scores, st.data())
def test_the_hard_choice_has_exactly_k(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(0, len(values)))
    chosen = hard_top_k(double(values), k)
    assert int(chosen.sum()) == k
    if 0 < k < len(values):
        assert double(values)[chosen].min() >= double(values)[~chosen].max()


def test_gumbel_noise_samples_without_replacement() -> None:
    """The largest of `score + noise` is head i with probability `softmax(score)_i`."""
    torch.manual_seed(0)
    values = torch.tensor([1.0, 0.0, -1.0])
    firsts = Counter((values + gumbel(torch.rand(3))).argmax().item() for _ in range(20_000))
    for i, probability in enumerate(torch.softmax(values, 0).tolist()):
        assert firsts[i] / 20_000 == pytest.approx(probability, abs=0.015)
    assert torch.isfinite(gumbel(torch.tensor([0.0, 1.0]))).all()


HEADS = [Head("enc", layer, index) for layer in range(3) for index in range(4)]
ALL = [list(range(12))]
LAYERS = [list(range(first, first + 4)) for first in (0, 4, 8)]


def make(groups: list[list[int]], budgets: list[int], updates: int = 100) -> TopKGates:
    return TopKGates(HEADS, torch.device("cpu"), groups, budgets, updates=updates)


@given(st.integers(0, 12), st.lists(st.floats(-5, 5), min_size=12, max_size=12))
def test_always_exactly_k(keep: int, values: list[float]) -> None:
    gates = make(ALL, [keep])
    assert len(gates.kept()) == keep, "before anything is learned"
    with torch.no_grad():
        gates.scores.copy_(torch.tensor(values))
    assert len(gates.kept()) == keep
    assert len(gates.closed()) == 12 - keep


@given(st.integers(0, 4), st.lists(st.floats(-5, 5), min_size=12, max_size=12))
def test_even_layers(each: int, values: list[float]) -> None:
    gates = make(LAYERS, [each] * 3)
    with torch.no_grad():
        gates.scores.copy_(torch.tensor(values))
    kept = Counter(head.layer for head in gates.kept())
    assert [kept[layer] for layer in range(3)] == [each] * 3


def test_groups_in_any_order_keep_heads_in_place() -> None:
    gates = make([LAYERS[2], LAYERS[0], LAYERS[1]], [4, 0, 1])
    gates.begin(101)
    assert [head.layer for head in gates.kept()] == [1, 2, 2, 2, 2]
    torch.testing.assert_close(gates.gates()[8:], torch.ones(4))


@pytest.mark.parametrize("keep", [0, 5, 12])
def test_from_all_heads_to_k(keep: int) -> None:
    gates = make(ALL, [keep])
    sums, temperatures_seen = [], []
    for update in range(1, 102):
        gates.begin(update)
        sums.append(gates.gates().sum().item())
        temperatures_seen.append(gates.temperature)
    assert sums[0] == 12, "the first loss is the baseline's"
    assert all(later <= earlier + 1e-4 for earlier, later in itertools.pairwise(sums))
    assert sums[-1] == pytest.approx(keep, abs=1e-4)
    assert temperatures_seen[0] == gates.hot
    assert temperatures_seen[-1] == pytest.approx(gates.cold)


def test_state_goes_round() -> None:
    gates = make(ALL, [5])
    with torch.no_grad():
        gates.scores.copy_(torch.randn(12))
    again = make(ALL, [5])
    again.load_state(gates.state())
    assert again.kept() == gates.kept()
