"""Heads, blocks of units and whole blocks: gates against weights scaled by hand, then removed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.heads import ALL_SITES, BLOCKS, SITES, UNIT_SITES, Head
from headcount.model import gating
from headcount.model.arithmetic import count_parameters, gate_parameters
from headcount.model.decoding import Search, beam_search
from headcount.model.gating import (
    even_layout,
    fold_gates,
    full_heads,
    gated,
    masked,
    narrowed,
    remove_heads,
    repacked,
    with_layout,
)
from headcount.model.transformer import Transformer
from model_shapes import SHAPES

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]
Gates = dict[tuple[str, int], torch.Tensor]

UNITS = {"ff_width": 10, "decoder_ff_width": 7, "ff_block": 3}  # the last blocks are smaller


def random_gates(model: Transformer, seed: int, *batch: int) -> Gates:
    rng = torch.Generator().manual_seed(seed)
    places = [(s, i) for s in ALL_SITES for i, own in enumerate(model.heads.layers[s]) if own]
    return {
        (site, layer): 2 * torch.rand(*batch, len(model.heads.layers[site][layer]), generator=rng,
                                      dtype=torch.float64)
        for site, layer in places
    }  # fmt: skip


def module_of(model: Transformer, site: str, layer: int) -> torch.nn.Module:
    stack = model.encoder if site.startswith("enc") else model.decoder
    names = {"enc": "self_attention", "dec": "self_attention", "cross": "cross_attention"}
    return getattr(stack[layer], names.get(site, "feed_forward"))


@torch.no_grad()
def scaled_by_hand(model: Transformer, gates: Gates) -> Transformer:
    """The reference: a copy whose last matrices are multiplied, column by column."""
    model = copy.deepcopy(model)
    for (site, layer), gate in gates.items():
        for place, factor in enumerate(gate.tolist()):
            index = model.heads.layers[site][layer][place]
            if site in BLOCKS:
                block = module_of(model, BLOCKS[site][index], layer)
                if hasattr(block, "attention"):
                    last = block.attention.out_weight, block.attention.out_bias
                else:
                    last = block.contract.weight, block.contract.bias
                for tensor in last:
                    tensor.mul_(factor)
            elif site in SITES:
                attention = module_of(model, site, layer).attention
                first = place * attention.head_width
                attention.out_weight[:, first : first + attention.head_width] *= factor
            else:
                own = model.heads.layers[site][layer]
                size, whole = model.config.ff_block, model.config.ff_width_at(site)
                before = sum(min(size, whole - b * size) for b in own[:place])
                units = min(size, whole - index * size)
                module_of(model, site, layer).contract.weight[:, before : before + units] *= factor
    return model


def some(model: Transformer, rng: torch.Generator, share: float) -> list[Head]:
    every = model.head_list(ALL_SITES)
    chosen = torch.rand(len(every), generator=rng) < share
    return [head for head, gone in zip(every, chosen.tolist(), strict=True) if gone]


def inputs(make_tokens: Tokens, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = make_tokens([5, 2], seed=seed), make_tokens([4, 3], seed=seed + 1)
    return source, torch.cat([torch.full((2, 1), 2), target], dim=1)


every_shape = st.sampled_from(sorted(SHAPES))


@settings(max_examples=12)
@given(seed=st.integers(0, 999), shape=every_shape)
@torch.no_grad()
def test_gates_multiply_what_the_hand_multiplies(
    make_model: Maker, make_tokens: Tokens, seed: int, shape: str
) -> None:
    model = make_model(seed, **UNITS, **SHAPES[shape])
    tokens, gates = inputs(make_tokens, seed), random_gates(model, seed)
    expected = scaled_by_hand(model, gates)(*tokens)
    with gated(model, gates):
        torch.testing.assert_close(model(*tokens), expected)
        found = beam_search(model, tokens[0], Search(beam=2), start=2, eos=3)
    by_hand = scaled_by_hand(model, gates)
    wanted = beam_search(by_hand, tokens[0], Search(beam=2), start=2, eos=3)
    assert [h[0].tokens for h in found] == [h[0].tokens for h in wanted]
    assert not torch.allclose(model(*tokens), expected)  # gates leave no trace
    fold_gates(model, gates)
    torch.testing.assert_close(model(*tokens), expected)


@settings(max_examples=6)
@given(seed=st.integers(0, 999), shape=every_shape)
@torch.no_grad()
def test_each_sentence_may_have_gates_of_its_own(
    make_model: Maker, make_tokens: Tokens, seed: int, shape: str
) -> None:
    model = make_model(seed, **UNITS, **SHAPES[shape])
    tokens, gates = inputs(make_tokens, seed), random_gates(model, seed, 2)
    with gated(model, gates):
        together = model(*tokens)
        memory, mask = model.encode(tokens[0])
        cache = model.start(memory, mask, beam=3)
        first = model.step(torch.full((2, 3), 2), cache)
    for row in range(2):
        with gated(model, {place: gate[row] for place, gate in gates.items()}):
            torch.testing.assert_close(together[row], model(*tokens)[row])
            states = model.decode(tokens[1][row : row + 1, :1], memory[row : row + 1],
                                  None if mask is None else mask[row : row + 1])  # fmt: skip
        torch.testing.assert_close(first[row], states[0].expand(3, -1))


@settings(max_examples=30)
@given(
    seed=st.integers(0, 9999),
    shape=every_shape,
    share=st.sampled_from([0.1, 0.4, 0.8, 1.0]),
    sites=st.sets(st.sampled_from(ALL_SITES), min_size=1),
)
@torch.no_grad()
def test_removed_equals_masked_at_every_site(
    make_model: Maker, make_tokens: Tokens, seed: int, shape: str, share: float, sites: set[str]
) -> None:
    model = make_model(seed, double=False, **UNITS, **SHAPES[shape])
    rng = torch.Generator().manual_seed(seed)
    closed = [head for head in some(model, rng, share) if head.site in sites]
    tokens = inputs(make_tokens, seed)
    by_hand = {(h.site, h.layer): torch.ones(len(model.heads.layers[h.site][h.layer]))
               for h in closed}  # fmt: skip
    for head in closed:
        by_hand[head.site, head.layer][head.index] = 0
    expected = scaled_by_hand(model, by_hand)(*tokens)
    with masked(model, closed):
        torch.testing.assert_close(model(*tokens), expected, rtol=0, atol=1e-5)
    smaller = remove_heads(model, closed)
    torch.testing.assert_close(smaller(*tokens), expected, rtol=0, atol=1e-5)
    # Step by step, with a cache.
    memory, mask = smaller.encode(tokens[0])
    cache = smaller.start(memory, mask)
    for place in range(tokens[1].shape[1]):
        states = smaller.step(tokens[1][:, place : place + 1], cache)
        logits = smaller.logits(states)[:, 0]
        torch.testing.assert_close(logits, expected[:, place], rtol=0, atol=2e-5)
    # What is gone is gone, and comes back as zeros.
    left = set(smaller.head_list(ALL_SITES))
    assert not left & set(closed)
    inside = {h for h in model.head_list(ALL_SITES) if h.site not in BLOCKS}
    lost = {h for h in inside - set(closed) if h not in left}
    assert all(not model_has_block(smaller, head) for head in lost)
    torch.testing.assert_close(full_heads(smaller)(*tokens), expected, rtol=0, atol=1e-5)
    even = with_layout(smaller, even_layout(smaller))
    torch.testing.assert_close(even(*tokens), expected, rtol=0, atol=1e-5)
    thin = narrowed(smaller, one_width=bool(seed % 2))
    torch.testing.assert_close(full_heads(thin)(*tokens), expected, rtol=0, atol=1e-5)
    assert not seed % 2 or thin.config.decoder_ff_width is None
    packed = repacked(smaller)
    torch.testing.assert_close(packed(*tokens), expected, rtol=0, atol=1e-5)
    assert count_parameters(packed) <= count_parameters(smaller)


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_an_encoder_alone(make_model: Maker, make_tokens: Tokens, norm: str) -> None:
    model = make_model(
        0, (19, 19), norm=norm, decoder_layers=0, tie="all", output_network=True, **UNITS
    )
    closed = [Head("enc", 0, 1), Head("enc_ff", 0, 3), Head("enc_layers", 1, 0)]
    source = make_tokens([5, 2])
    with masked(model, closed):
        expected = model(source, source)
    smaller = remove_heads(model, closed)
    for other in (smaller, repacked(smaller), full_heads(narrowed(repacked(smaller)))):
        torch.testing.assert_close(other(source, source), expected)


def model_has_block(model: Transformer, head: Head) -> bool:
    return not module_of(model, head.site, head.layer).removed


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_size_of_a_gate_is_what_its_removal_saves(make_model: Maker, shape: str) -> None:
    model = make_model(0, **UNITS, **SHAPES[shape])
    heads = model.head_list(ALL_SITES)
    sizes = dict(zip(heads, gate_parameters(model, heads), strict=True))
    whole = count_parameters(model)
    for head in heads[:: 3 if shape != "pre" else 1]:
        assert sizes[head] == whole - count_parameters(remove_heads(model, [head])), head


def test_a_layer_without_anything_left_is_gone(make_model: Maker, make_tokens: Tokens) -> None:
    """In pre-norm its output is its input, and it has no weights."""
    model = make_model(0, **UNITS)
    smaller = remove_heads(model, [Head("enc_layers", 1, 0), Head("enc_layers", 1, 1)])
    assert sum(p.numel() for p in smaller.encoder[1].parameters()) == 0
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    assert smaller.encoder[1](x, None) is x
    assert repacked(smaller).config.encoder_layers == 1
    nothing = remove_heads(model, model.head_list(tuple(BLOCKS)))
    assert repacked(nothing).config.encoder_layers == 1
    tokens = inputs(make_tokens, 0)
    with torch.no_grad():
        expected = nothing(*tokens)
        torch.testing.assert_close(repacked(nothing)(*tokens), expected)


@torch.no_grad()
def test_blocks_come_back_as_zeros_in_large_models(
    make_model: Maker, make_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These share the tensors that stay as they are."""
    monkeypatch.setattr(gating, "LARGE", 0)
    model, tokens = make_model(0, **UNITS), inputs(make_tokens, 0)
    smaller = remove_heads(model, [Head("enc_layers", 1, 0), Head("dec_ff", 0, 1)])
    torch.testing.assert_close(full_heads(smaller)(*tokens), smaller(*tokens))


def test_blocks_of_a_repacked_model_keep_their_order(make_model: Maker) -> None:
    model = make_model(0, **UNITS, encoder_layers=4, decoder_layers=3)
    gone = ["enc_layers.0.1", "enc_layers.1.0", "enc_layers.2.0", "dec_layers.0.2",
            "dec_layers.1.0", "dec_layers.1.1", "dec_layers.2.1"]  # fmt: skip
    packed = repacked(remove_heads(model, map(Head.parse, gone)))
    # attention 0 | network 1 | network 2 | attention 3, network 3
    assert packed.heads.layers["enc_layers"] == ((0, 1), (1,), (0, 1))
    # self 0, cross 0 | network 1 | self 2, network 2
    assert packed.heads.layers["dec_layers"] == ((0, 1, 2), (0, 2))
    for new, old in ((0, 1), (1, 2), (2, 3)):
        weight = packed.encoder[new].feed_forward.expand.weight
        assert torch.equal(weight, model.encoder[old].feed_forward.expand.weight)


@pytest.mark.parametrize("site", [*UNIT_SITES, *BLOCKS])
def test_gradients_reach_the_gates(make_model: Maker, make_tokens: Tokens, site: str) -> None:
    model = make_model(0, **UNITS)
    gates = {p: g.requires_grad_() for p, g in random_gates(model, 0).items() if p[0] == site}
    with gated(model, gates):
        model(*inputs(make_tokens, 0)).square().sum().backward()
    assert all(gate.grad is not None and gate.grad.abs().min() > 0 for gate in gates.values())
