"""The gated objective: one sample an update, exact gradients, two phases; a planted task."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from headcount.data.batches import Batch
from headcount.heads import Head
from headcount.model.gating import gated, masked, remove_heads
from headcount.model.transformer import Transformer
from headcount.pruning.by_score import ScoredHeads
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.objective import GatedObjective
from headcount.pruning.selection import Selection, by_layer
from headcount.pruning.top_k import TopKGates
from headcount.training.objective import Objective

CPU = torch.device("cpu")


def make_batch(seed: int, rows: int = 6, length: int = 5, target: Tensor | None = None) -> Batch:
    """Random source and target tokens without padding."""
    rng = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 19, (rows, length), generator=rng)
    output = torch.randint(4, 19, (rows, length), generator=rng) if target is None else target
    given = torch.cat([torch.full((rows, 1), 2), output[:, :-1]], dim=1)
    return Batch(source, given, output, torch.arange(rows).numpy(), source.numel(), output.numel())


def hard_concrete(model: Transformer, weight: float = 0.01, **more: Any) -> HardConcreteGates:
    given = {"warmup": 10, "patience": 10**6, "start": 2.5} | more
    return HardConcreteGates(model.heads.heads(("enc",)), CPU, weight=weight, **given)


def test_values_go_to_their_layers() -> None:
    heads = [Head("enc", 0, 1), Head("enc", 2, 0), Head("enc", 2, 3), Head("cross", 1, 0)]
    gates = by_layer(heads, torch.arange(4.0))
    assert {place: part.tolist() for place, part in gates.items()} == {
        ("enc", 0): [0],
        ("enc", 2): [1, 2],
        ("cross", 1): [3],
    }


def test_open_gates_change_nothing(make_model: Callable[..., Transformer]) -> None:
    model = make_model(0)
    gates = hard_concrete(model, start=50.0)
    objective = GatedObjective(model, 0.1, gates, choosing=10, finetune=0)
    objective.begin_update(1)
    plain = Objective(model, 0.1).losses(make_batch(1))
    torch.testing.assert_close(objective.losses(make_batch(1)), plain)


def test_one_sample_an_update(make_model: Callable[..., Transformer]) -> None:
    """All micro-batches of an update see the same gates; the next update sees others."""
    model = make_model(0)
    objective = GatedObjective(model, 0.0, hard_concrete(model, start=0.0), 10, 0)
    losses = []
    for update in (1, 1, 2):
        torch.manual_seed(update)
        objective.begin_update(update)
        losses.append([float(objective.losses(make_batch(1)).nll) for _ in range(2)])
    assert losses[0][0] == losses[0][1] == losses[1][0]
    assert losses[2][0] != losses[0][0]


def test_micro_batches_add_up_to_one_batch(make_model: Callable[..., Transformer]) -> None:
    """Gradients of logits and weights over several backward passes equal those of one."""
    model = make_model(0)
    gates = hard_concrete(model, start=0.3)
    objective = GatedObjective(model, 0.1, gates, 10, 0)
    batch = make_batch(3, rows=6)
    parts = [
        Batch(
            batch.source[i : i + 2], batch.target_input[i : i + 2], batch.target_output[i : i + 2],
            batch.indices[i : i + 2], 10, 10,
        )
        for i in (0, 2, 4)
    ]  # fmt: skip
    found = []
    for batches in ([batch], parts):
        model.zero_grad()
        gates.logits.grad = None
        torch.manual_seed(5)
        objective.begin_update(1)
        for each in batches:
            objective.losses(each).smoothed.backward()
        penalty = objective.penalty()
        assert penalty is not None
        penalty.backward()
        assert gates.logits.grad is not None
        weight = model.attentions()["enc", 0].out_weight.grad
        assert weight is not None
        found.append((gates.logits.grad.clone(), weight.clone()))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[0][1], found[1][1])


def test_two_phases(make_model: Callable[..., Transformer]) -> None:
    model = make_model(0)
    gates = hard_concrete(model)
    objective = GatedObjective(model, 0.0, gates, choosing=6, finetune=4)
    with torch.no_grad():
        gates.logits[:3] = -9
    closed = gates.heads[:3]
    stopped = []
    for update in range(1, 12):
        if objective.finished():
            stopped.append(update)
            if objective.fixed:
                break
            objective.fix(remove_heads(model, closed))
        torch.manual_seed(update)
        objective.begin_update(update)
        loss = objective.losses(make_batch(2)).nll
        with masked(model, closed):
            fixed = Objective(model, 0.0).losses(make_batch(2)).nll
        if update > 6:
            torch.testing.assert_close(loss, fixed)
            assert objective.penalty() is None
        else:
            assert objective.penalty() is not None
    assert objective.fixed_at == 6
    assert stopped == [7, 11]
    shares = [objective.share_left(update) for update in (6, 7, 8, 10)]
    assert shares == [1, 1, 0.75, 0.25]


def test_settled_gates_end_the_first_phase(make_model: Callable[..., Transformer]) -> None:
    model = make_model(0)
    gates = hard_concrete(model, start=6.0, warmup=0, patience=3)
    objective = GatedObjective(model, 0.0, gates, choosing=100, finetune=0)
    updates = 0
    while not objective.finished():
        updates += 1
        objective.begin_update(updates)
    assert updates == 3


def test_updates_that_settled_gates_save_are_spent_on_fine_tuning(
    make_model: Callable[..., Transformer],
) -> None:
    model = make_model(0)
    gates = hard_concrete(model, start=6.0, warmup=0, patience=3)
    objective = GatedObjective(model, 0.0, gates, choosing=6, finetune=2)
    rates, ends = [], []
    for update in range(1, 9):
        objective.begin_update(update)
        rates.append(objective.share_left(update))
        if objective.finished():
            ends.append(update)
            objective.fix(model)
    assert ends == [3, 8]
    assert rates == [1, 1, 1, 1, 0.8, pytest.approx(0.6), pytest.approx(0.4), pytest.approx(0.2)]


def top_k(model: Transformer) -> TopKGates:
    return TopKGates(model.heads.heads(("enc",)), CPU, [range(6)], [2], updates=3)


def scored(model: Transformer) -> ScoredHeads:
    heads = model.heads.heads(("enc",))
    scores = {head: float(i) for i, head in enumerate(heads)}
    return ScoredHeads(heads, CPU, [range(6)], [2], scores=scores, updates=3, steps=2)


@pytest.mark.parametrize("make", [hard_concrete, top_k, scored])
def test_state_goes_round(
    make_model: Callable[..., Transformer], make: Callable[[Transformer], Selection]
) -> None:
    """After any update, also between the phases, where what was chosen is logged."""
    model = make_model(0)
    one = GatedObjective(model, 0.0, make(model), 3, 5)
    for update in range(1, 6):
        if one.finished():
            one.fix(model)
        one.begin_update(update)
        other = GatedObjective(model, 0.0, make(model), 3, 5)
        other.load_state(one.state())
        assert (other.update, other.fixed_at) == (one.update, one.fixed_at)
        assert other.selection.kept() == one.selection.kept()
        assert other.metrics() == one.metrics()
    assert one.fixed_at == 3


PLANTED = [Head("enc", 0, 1), Head("enc", 1, 0), Head("enc", 1, 2)]


@pytest.fixture(scope="module")
def planted(make_model: Callable[..., Transformer]) -> tuple[Transformer, list[Batch]]:
    """A model, and batches whose labels it produces with only the planted heads switched on."""
    model = make_model(6, double=False, width=24, ff_width=24)
    with torch.no_grad():  # let the translation depend on the source, and that on the heads
        for (site, _), attention in model.attentions().items():
            attention.out_weight.mul_({"enc": 4, "cross": 4, "dec": 0.3}[site])
    others = [head for head in model.heads.heads(("enc",)) if head not in PLANTED]
    batches = []
    with masked(model, others), torch.no_grad():
        for seed in range(20):
            batch = make_batch(seed, rows=24)
            labels = model(batch.source, batch.target_input).argmax(-1)
            real = int((labels != model.target_pad).sum())
            batches.append(
                Batch(batch.source, batch.target_input, labels, batch.indices, 120, real)
            )
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model, batches


def learn(model: Transformer, batches: list[Batch], selection: Selection, rate: float) -> None:
    objective = GatedObjective(model, 0.0, selection, choosing=150, finetune=0)
    optimiser = torch.optim.Adam(selection.parameters(), lr=rate)
    for update in range(1, 151):
        torch.manual_seed(update)
        objective.begin_update(update)
        batch = batches[update % len(batches)]
        optimiser.zero_grad()
        loss = objective.losses(batch).smoothed / batch.target_tokens
        penalty = objective.penalty()
        (loss if penalty is None else loss + penalty).backward()
        optimiser.step()


def test_gates_find_the_planted_heads(planted: tuple[Transformer, list[Batch]]) -> None:
    model, batches = planted
    gates = hard_concrete(model, weight=0.3)
    learn(model, batches, gates, rate=0.1)
    assert gates.kept() == PLANTED
    assert not gates.undecided()


def test_exact_number_finds_the_planted_heads(planted: tuple[Transformer, list[Batch]]) -> None:
    model, batches = planted
    heads = model.heads.heads(("enc",))
    gates = TopKGates(heads, CPU, [list(range(len(heads)))], [3], updates=150)
    learn(model, batches, gates, rate=0.1)
    assert gates.kept() == PLANTED


def test_a_large_penalty_closes_everything(planted: tuple[Transformer, list[Batch]]) -> None:
    model, batches = planted
    gates = hard_concrete(model, weight=30.0)
    learn(model, batches, gates, rate=0.1)
    assert gates.kept() == []


def test_gates_are_off_after_an_error(make_model: Callable[..., Transformer]) -> None:
    model = make_model(0)
    with pytest.raises(ValueError), gated(model, {("enc", 0): torch.ones(7)}):
        pass
    assert all(attention.gate is None for attention in model.attentions().values())
