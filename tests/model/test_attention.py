"""Attention against a slow version straight from the paper's equations (Sec. 2)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.config import ModelConfig
from headcount.model import attention as attention_module
from headcount.model.attention import Attention
from headcount.model.recording import Recording, Tape
from headcount.model.transformer import Transformer

WIDTH, HEAD_WIDTH = 6, 4


def make_attention(heads: tuple[int, ...], seed: int = 0) -> Attention:
    torch.manual_seed(seed)
    config = ModelConfig(width=WIDTH, head_width=HEAD_WIDTH, heads=8)
    attention = Attention("enc", 0, config, heads, Tape()).double()
    torch.nn.init.normal_(attention.in_bias)
    torch.nn.init.normal_(attention.out_bias)
    return attention.eval()


def slow_attention(
    attention: Attention, x: Tensor, memory: Tensor, real: Tensor | None, causal: bool
) -> Tensor:
    """`MultiHead(Q, K, V) = Concat_i(g_i head_i) W^O`, one number at a time."""
    query_weight, key_weight, value_weight = attention.in_weight.chunk(3)
    query_bias, key_bias, value_bias = attention.in_bias.chunk(3)
    outputs = torch.zeros_like(x)
    for sentence in range(x.shape[0]):
        for position in range(x.shape[1]):
            concatenated = []
            for place in range(len(attention.heads)):
                rows = slice(place * HEAD_WIDTH, (place + 1) * HEAD_WIDTH)
                query = query_weight[rows] @ x[sentence, position] + query_bias[rows]
                visible = [
                    key
                    for key in range(memory.shape[1])
                    if (real is None or real[sentence, key]) and not (causal and key > position)
                ]
                powers, values = [], []
                for key in visible:
                    state = memory[sentence, key]
                    score = query @ (key_weight[rows] @ state + key_bias[rows])
                    powers.append(math.exp(float(score) / math.sqrt(HEAD_WIDTH)))
                    values.append(value_weight[rows] @ state + value_bias[rows])
                head = sum(p / sum(powers) * v for p, v in zip(powers, values, strict=True))
                gate = 1.0 if attention.gate is None else float(attention.gate[place])
                concatenated.append(gate * head)
            merged = torch.cat(concatenated)
            outputs[sentence, position] = attention.out_weight @ merged + attention.out_bias
    return outputs


@settings(max_examples=50)
@given(
    heads=st.sets(st.integers(0, 7), min_size=1, max_size=3),
    queries=st.integers(1, 4),
    keys=st.integers(1, 5),
    kind=st.sampled_from(["self", "causal", "cross"]),
    padded=st.booleans(),
    gate=st.booleans(),
    recorded=st.booleans(),
    seed=st.integers(0, 99),
)
@torch.no_grad()
def test_attention_is_the_papers(
    heads: set[int],
    queries: int,
    keys: int,
    kind: str,
    padded: bool,
    gate: bool,
    recorded: bool,
    seed: int,
) -> None:
    attention = make_attention(tuple(sorted(heads)), seed)
    x = torch.randn(2, queries, WIDTH, dtype=torch.float64)
    memory = torch.randn(2, keys, WIDTH, dtype=torch.float64) if kind == "cross" else x
    real = None
    if padded and kind != "causal":
        real = torch.ones(memory.shape[:2], dtype=torch.bool)
        real[1, 1:] = False
    if gate:
        attention.gate = torch.rand(len(heads), dtype=torch.float64)
    if recorded:
        attention.tape.recording = Recording(["weights"])
    ours = attention(
        x,
        memory=memory if kind == "cross" else None,
        mask=None if real is None else real[:, None, None],
        causal=kind == "causal",
    )
    expected = slow_attention(attention, x, memory, real, causal=kind == "causal")
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_weights_are_shares_of_visible_keys() -> None:
    attention = make_attention((0, 1))
    attention.tape.recording = Recording(["weights"])
    x = torch.randn(2, 4, WIDTH, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)[:, None, None]
    attention(x, mask=mask)
    weights = attention.tape.recording["enc", 0, "weights"]
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 2, 4, dtype=torch.float64))
    assert weights[1, :, :, 2:].abs().max() == 0


@pytest.mark.parametrize("memory_length", [None, 3])
def test_no_heads_no_attention_but_the_bias(memory_length: int | None) -> None:
    attention = make_attention(())
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    memory = None if memory_length is None else torch.randn(2, memory_length, WIDTH)
    assert torch.equal(attention(x, memory=memory), attention.out_bias.expand(2, 5, WIDTH))


def test_attention_dropout_in_training_only() -> None:
    attention = make_attention((0, 1))
    attention.dropout = 0.5
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(attention(x), attention(x))
    attention.train()
    assert not torch.allclose(attention(x), attention(x))


@pytest.mark.parametrize("padded", [False, True])
def test_learning_position_biases_gives_what_the_fused_kernel_gives(
    monkeypatch: pytest.MonkeyPatch, padded: bool
) -> None:
    """On a CPU their gradient is computed step by step: the output and every gradient stay."""
    config = ModelConfig(
        width=WIDTH, head_width=HEAD_WIDTH, heads=3, relative_positions="layer", encoder_layers=1
    )
    model = Transformer(config, 11, 11).double()
    source = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 10, 3, 0 if padded else 4]])

    def gradients() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        memory, _ = model.encode(source)
        memory.square().sum().backward()  # type: ignore[no-untyped-call]
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return memory.detach(), found

    model.eval()  # dropout would draw other numbers
    memory, learned = gradients()
    assert any("positions" in name for name in learned)
    monkeypatch.setattr(attention_module, "faster_by_steps", lambda queries, bias: False)
    fused_memory, fused = gradients()
    torch.testing.assert_close(memory, fused_memory)
    torch.testing.assert_close(learned, fused)
