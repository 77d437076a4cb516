"""Heads that are really gone: the smaller model gives what the masked one gave."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.heads import SITES, Head
from headcount.model.gating import fold_gates, gated, masked, remove_heads
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]


def some_heads(model: Transformer, seed: int, sites: set[str]) -> list[Head]:
    """A random subset; now and then whole layers, or all heads of all sites."""
    rng = random.Random(seed)
    share = rng.choice([0.0, 0.3, 0.7, 1.0])
    closed = {head for head in model.head_list() if rng.random() < share}
    layer = rng.randrange(2)
    closed |= {head for head in model.head_list() if head.layer == layer and rng.random() < 0.5}
    return [head for head in model.head_list() if head in closed and head.site in sites]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    norm=st.sampled_from(["pre", "post"]),
    sites=st.sets(st.sampled_from(SITES), min_size=1),
)
@torch.no_grad()
def test_removed_equals_masked(
    make_model: Maker, make_tokens: Tokens, seed: int, norm: str, sites: set[str]
) -> None:
    model = make_model(seed, norm=norm, double=False)
    closed = some_heads(model, seed, sites)
    source, target = make_tokens([5, 2], seed=seed), make_tokens([4, 3], seed=seed)
    untouched = model(source, target)
    with masked(model, closed):
        expected = model(source, target)
    smaller = remove_heads(model, closed)
    torch.testing.assert_close(smaller(source, target), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(model(source, target), untouched)
    assert set(smaller.head_list()) == set(model.head_list()) - set(closed)
    for (site, layer), attention in smaller.attentions().items():
        assert attention.heads == smaller.heads.layers[site][layer]
        assert attention.in_weight.shape == (3 * 4 * len(attention.heads), 12)
    lost = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in smaller.parameters())
    assert lost == len(closed) * 4 * (4 * 12 + 3)  # rows of W^Q, W^K, W^V and columns of W^O


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), norm=st.sampled_from(["pre", "post"]))
@torch.no_grad()
def test_folded_gates_need_no_gates(
    make_model: Maker, make_tokens: Tokens, seed: int, norm: str
) -> None:
    """Gates folded into the weights, closed heads removed: still the gated model."""
    model = make_model(seed, norm=norm)
    closed = some_heads(model, seed, set(SITES))
    torch.manual_seed(seed)
    gates = {
        place: torch.rand(len(attention.heads), dtype=torch.float64)
        * torch.tensor([Head(*place, index) not in closed for index in attention.heads])
        for place, attention in model.attentions().items()
    }
    source, target = make_tokens([5, 2], seed=seed), make_tokens([4, 3], seed=seed)
    with gated(model, gates):
        expected = model(source, target)
    fold_gates(model, gates)
    torch.testing.assert_close(model(source, target), expected, rtol=1e-9, atol=1e-9)
    smaller = remove_heads(model, closed)
    torch.testing.assert_close(smaller(source, target), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_removal_goes_on_from_a_smaller_model(make_model: Maker, make_tokens: Tokens) -> None:
    """Heads keep their numbers, so removing one after the other is removing both."""
    model = make_model(tie="all", vocabulary=(19, 19))
    first, second = [Head("enc", 0, 0), Head("dec", 1, 1)], [Head("enc", 0, 2), Head("cross", 0, 1)]
    twice = remove_heads(remove_heads(model, first), second)
    once = remove_heads(model, first + second)
    assert twice.heads == once.heads
    assert twice.heads.layers["enc"][0] == (1,)
    source, target = make_tokens([5]), make_tokens([4])
    torch.testing.assert_close(twice(source, target), once(source, target))
    assert once.output_weight is once.source_embedding.table.weight


def test_what_is_not_there_cannot_be_removed(make_model: Maker) -> None:
    model = make_model()
    smaller = remove_heads(model, [Head("enc", 0, 0)])
    with pytest.raises(ValueError, match=r"no such heads.*enc\.0\.0"):
        remove_heads(smaller, [Head("enc", 0, 0)])


def test_mode_and_type_are_kept(make_model: Maker) -> None:
    model = make_model().train()
    smaller = remove_heads(model, [Head("enc", 0, 0)])
    assert smaller.training
    assert smaller.output_weight.dtype == torch.float64
