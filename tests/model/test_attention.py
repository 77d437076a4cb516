"""Attention against a slow version straight from the paper's equations (Sec. 2)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

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


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("padded", [False, True])
def test_training_step_by_step_gives_what_the_fused_kernel_gives(
    monkeypatch: pytest.MonkeyPatch, padded: bool, precision: torch.dtype
) -> None:
    """Where a CPU learns position biases, or in 16 bits: outputs and gradients stay the same."""
    positions = "layer" if precision == torch.float64 else "none"
    config = ModelConfig(
        width=12, head_width=HEAD_WIDTH, heads=3, relative_positions=positions, dropout=0.0
    )
    torch.manual_seed(0)
    model = Transformer(config, 11, 11).to(precision)
    source = torch.tensor([[4, 5, 6, 7, 3], [8, 9, 10, 3, 0 if padded else 4]])
    target = torch.tensor([[2, 5, 9, 4], [2, 4, 6, 8]])
    fused_calls = []
    fused_kernel = F.scaled_dot_product_attention

    def counted(*arguments: Tensor, **options: Any) -> Tensor:
        fused_calls.append(arguments[0].shape)
        return fused_kernel(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", counted)

    def outputs_and_gradients() -> tuple[Tensor, dict[str, Tensor]]:
        model.zero_grad()
        logits = model(source, target)
        logits.square().mean().backward()
        gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        return logits.detach(), gradients

    logits, gradients = outputs_and_gradients()
    layers = config.encoder_layers + config.decoder_layers
    biased = precision == torch.float64  # attention to the source has no position biases
    assert len(fused_calls) == (config.decoder_layers if biased else 0)
    assert biased == any("positions" in name for name in gradients)
    monkeypatch.setattr(attention_module, "faster_by_steps", lambda queries, bias: False)
    fused_calls.clear()
    fused_logits, fused_gradients = outputs_and_gradients()
    assert len(fused_calls) == layers + config.decoder_layers
    tolerance = {"rtol": 1e-7, "atol": 1e-9} if biased else {"rtol": 0.1, "atol": 0.02}
    torch.testing.assert_close(logits, fused_logits, **tolerance)
    torch.testing.assert_close(gradients, fused_gradients, **tolerance)


def test_without_gradients_the_fused_kernel_runs() -> None:
    queries = torch.zeros(1, 1, 2, 4, dtype=torch.bfloat16)
    bias = torch.zeros(1, 2, 2, requires_grad=True)
    assert attention_module.faster_by_steps(queries, None)
    assert attention_module.faster_by_steps(queries.float(), bias)
    assert not attention_module.faster_by_steps(queries.float(), bias.detach())
    with torch.no_grad():
        assert not attention_module.faster_by_steps(queries, bias)
