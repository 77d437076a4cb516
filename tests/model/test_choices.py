"""Positions, norms and feed-forward networks of other families, against slow versions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from headcount.heads import Head
from headcount.model.gating import masked, remove_heads
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from model_shapes import SHAPES

Maker = Callable[..., Transformer]
Tokens = Callable[..., Tensor]


def slow_bucket(offset: int, buckets: int, distance: int, both_ways: bool) -> int:
    """Raffel et al.'s buckets, one offset (key minus query) at a time."""
    base = 0
    if both_ways:
        buckets //= 2
        base = buckets if offset > 0 else 0
        steps = abs(offset)
    else:
        steps = max(0, -offset)
    single = buckets // 2
    if steps < single:
        return base + steps
    growth = math.log(steps / single) / math.log(distance / single)
    return base + min(buckets - 1, single + int(growth * (buckets - single)))


@pytest.mark.parametrize("site", ["enc", "dec"])
def test_relative_positions_are_buckets_of_distances(make_model: Maker, site: str) -> None:
    model = make_model(double=False, **SHAPES["t5"])
    (relative,) = model.encoder_positions if site == "enc" else model.decoder_positions
    length, heads = 30, (2, 0)
    biases = relative(length, heads)
    for query in range(length):
        for key in range(length):
            if site == "dec" and key > query:
                assert biases[:, query, key].tolist() == [-math.inf] * 2
                continue
            bucket = slow_bucket(key - query, 8, 12, site == "enc")
            assert biases[:, query, key].tolist() == relative.table[bucket, [2, 0]].tolist()
    torch.testing.assert_close(relative.last_row(length, heads), biases[:, -1], rtol=0, atol=0)


@torch.no_grad()
def test_t5_attention_adds_position_biases_to_unscaled_scores(
    make_model: Maker, make_tokens: Tokens
) -> None:
    model = make_model(1, **SHAPES["t5"])
    source, target = make_tokens([6, 3]), make_tokens([4, 5])
    with record(model, {"queries", "keys", "weights"}) as recording:
        seen = model(source, target)
    torch.testing.assert_close(model(source, target), seen)  # the fused kernel
    for (site, layer), attention in model.attentions().items():
        queries, keys, weights = (
            recording[site, layer, kind] for kind in ("queries", "keys", "weights")
        )
        for row, head, query in [(0, 1, 2), (1, 2, 1), (1, 0, 3)]:
            scores = [float(queries[row, head, query] @ key) for key in keys[row, head]]
            real = len(scores) if site == "dec" else int((source[row] != 0).sum())
            table = attention.relative.table if attention.relative is not None else None
            for key in range(len(scores)):
                if table is not None:
                    bucket = slow_bucket(key - query, 8, 12, site == "enc")
                    scores[key] += float(table[bucket, head])
                if key >= real or (site == "dec" and key > query):
                    scores[key] = -math.inf
            powers = [math.exp(score) for score in scores]
            expected = [power / sum(powers) for power in powers]
            assert weights[row, head, query].tolist() == pytest.approx(expected, abs=1e-9)


@torch.no_grad()
def test_gated_networks_multiply_by_a_second_map(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(2, **SHAPES["t5 1.1"])
    with record(model, {"residual", "sum"}, {"enc_ff"}) as recording:
        model.encode(make_tokens([5]))
    block = model.encoder_layers()[1].feed_forward
    x, total = recording["enc_ff", 1, "residual"][0, 2], recording["enc_ff", 1, "sum"][0, 2]
    epsilon = model.config.norm_epsilon
    normed = x / math.sqrt(float(x.square().mean()) + epsilon) * block.norm.weight
    hidden = block.expand.weight @ normed
    curve = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
    hidden = 0.5 * hidden * (1 + torch.tanh(curve)) * (block.multiply.weight @ normed)
    torch.testing.assert_close(total, x + block.contract.weight @ hidden)


@pytest.mark.parametrize("shape", sorted(SHAPES))
@torch.no_grad()
def test_masked_equals_removed(make_model: Maker, make_tokens: Tokens, shape: str) -> None:
    model = make_model(3, **SHAPES[shape])
    source, target = make_tokens([6, 2]), make_tokens([4, 4], seed=1)
    gone = [Head.parse(h) for h in ("enc.0.1", "enc.1.0", "enc.1.1", "enc.1.2", "dec.1.0")]
    gone += [Head("cross", 0, i) for i in range(3)]
    with masked(model, gone):
        expected = model(source, target)
    smaller = remove_heads(model, gone)
    torch.testing.assert_close(smaller(source, target), expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(model(source, target), expected)


@torch.no_grad()
def test_embeddings_are_normed_with_their_positions(make_model: Maker, make_tokens: Tokens) -> None:
    embedding = make_model(4, **SHAPES["bart"]).source_embedding
    tokens = make_tokens([5])
    x = embedding.table.weight[tokens[0, 3]] * math.sqrt(12) + embedding.positions[3]
    centred = x - x.mean()
    expected = centred / (x.var(correction=0) + 1e-5).sqrt()
    expected = expected * embedding.norm.weight + embedding.norm.bias
    torch.testing.assert_close(embedding(tokens)[0, 3], expected)
    torch.testing.assert_close(embedding.step(tokens[0, 3:4], 3)[0], expected)


def test_learned_positions_are_weights_and_missing_biases_are_none(make_model: Maker) -> None:
    learned = make_model(**SHAPES["bart"])
    assert "source_embedding.positions" in learned.state_dict()
    assert len(learned.source_embedding.positions) == learned.config.max_positions
    without = make_model(**SHAPES["t5"])
    assert not any("bias" in name for name in without.state_dict())
    assert sum("positions.0.table" in name for name in without.state_dict()) == 2
    per_layer = make_model(**SHAPES["biases per layer"])
    tables = [layer.self_attention.attention.relative for layer in per_layer.encoder_layers()]
    assert len({id(table) for table in tables}) == per_layer.config.encoder_layers
