"""Gates on heads (Sec. 6.1): what they multiply, and that they leave no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.heads import Head
from headcount.model.gating import gated, mask_gates, masked
from headcount.model.recording import record
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]


def all_gates(
    model: Transformer, *batch: int, seed: int = 0
) -> dict[tuple[str, int], torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        place: torch.rand(*batch, len(attention.heads), generator=rng, dtype=torch.float64)
        for place, attention in model.attentions().items()
    }


@torch.no_grad()
def test_gates_of_ones_change_nothing(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    source, target = make_tokens([5, 2]), make_tokens([4, 3])
    plain = model(source, target)
    ones = {place: torch.ones_like(gate) for place, gate in all_gates(model).items()}
    with gated(model, ones):
        assert torch.equal(model(source, target), plain)
    assert torch.equal(model(source, target), plain)


@settings(max_examples=15)
@given(seed=st.integers(0, 99), norm=st.sampled_from(["pre", "post"]))
@torch.no_grad()
def test_gates_of_each_sentence_equal_gates_of_a_batch(
    make_model: Maker, make_tokens: Tokens, seed: int, norm: str
) -> None:
    model = make_model(seed, norm=norm)
    source, target = make_tokens([5, 2, 4], seed=seed), make_tokens([4, 3, 3], seed=seed)
    gates = all_gates(model, 3, seed=seed)
    with gated(model, gates):
        together = model(source, target)
    for row in range(3):
        with gated(model, {place: gate[row] for place, gate in gates.items()}):
            alone = model(source, target)[row]
        torch.testing.assert_close(together[row], alone, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_a_gate_multiplies_its_head_before_the_output_projection(
    make_model: Maker, make_tokens: Tokens
) -> None:
    model = make_model()
    source, target = make_tokens([5]), make_tokens([4])
    gate = torch.tensor([0.25, 0.0, 2.0], dtype=torch.float64)
    with gated(model, {("cross", 1): gate}), record(model, ["outputs", "output"]) as recording:
        model(source, target)
    attention = model.attentions()["cross", 1]
    heads = recording["cross", 1, "outputs"]  # before the gate: [1, heads, target, head]
    expected = sum(
        gate[i] * heads[:, i] @ attention.out_weight[:, 4 * i : 4 * i + 4].T for i in range(3)
    )
    output = recording["cross", 1, "output"]
    torch.testing.assert_close(output, expected + attention.out_bias)


def test_gradients_reach_gates(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    gates = {place: gate.requires_grad_() for place, gate in all_gates(model).items()}
    with gated(model, gates):
        model(make_tokens([5]), make_tokens([4])).square().sum().backward()
    assert all(gate.grad is not None and gate.grad.abs().min() > 0 for gate in gates.values())


def test_gates_go_when_the_context_ends(make_model: Maker) -> None:
    model = make_model()
    gates = all_gates(model)
    outer = {("enc", 0): gates["enc", 0]}

    def fail() -> None:
        with gated(model, outer):
            with gated(model, gates):
                assert model.attentions()["dec", 1].gate is gates["dec", 1]
            assert model.attentions()["enc", 0].gate is outer["enc", 0]
            assert model.attentions()["dec", 1].gate is None
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert all(attention.gate is None for attention in model.attentions().values())


def test_a_gate_of_the_wrong_size_is_refused_and_none_stays(make_model: Maker) -> None:
    model = make_model()
    gates = {("enc", 0): torch.ones(3), ("enc", 1): torch.ones(2)}
    with pytest.raises(ValueError, match="3 heads"), gated(model, gates):
        pass
    assert all(attention.gate is None for attention in model.attentions().values())


@torch.no_grad()
def test_masked_heads_do_nothing_at_all(make_model: Maker, make_tokens: Tokens) -> None:
    """Whatever a masked head would put out, the model does not see it."""
    model = make_model()
    source, target = make_tokens([5, 2]), make_tokens([4, 3])
    closed = [Head("enc", 0, 1), Head("cross", 1, 2)]
    with masked(model, closed):
        before = model(source, target)
        for head in closed:
            attention = model.attentions()[head.site, head.layer]
            first = 2 * attention.inner + head.index * 4  # the head's rows of the values
            attention.in_weight[first : first + 4] += 10.0
        torch.testing.assert_close(model(source, target), before)
    assert not torch.allclose(model(source, target), before)


def test_mask_gates_name_only_the_layers_they_touch(make_model: Maker) -> None:
    gates = mask_gates(make_model(), [Head("enc", 1, 0), Head("enc", 1, 2)])
    assert {place: gate.tolist() for place, gate in gates.items()} == {("enc", 1): [0, 1, 0]}
