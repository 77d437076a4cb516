"""A head that is cut out is the same as a head that is switched off, for any set of heads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.heads import SITES, Head, HeadLayout
from headcount.model import gating
from headcount.model.decoding import Search, beam_search
from headcount.model.gating import fold_gates, gated, mask_gates, masked, remove_heads
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]

CUT = [f"self_attention.attention.{name}" for name in ("in_weight", "in_bias", "out_weight")]
EVERY = HeadLayout.full(2, 2, 3).heads()
whole_layers = st.sets(st.sampled_from([(head.site, head.layer) for head in EVERY]))


@st.composite
def subsets(draw: st.DrawFn) -> list[Head]:
    """Any heads, and often all heads of some layers."""
    gone = draw(st.sets(st.sampled_from(EVERY)))
    layers = draw(whole_layers)
    return [h for h in EVERY if h in gone or (h.site, h.layer) in layers]


def inputs(make_tokens: Tokens, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    source, target = make_tokens([4, 6, 1], seed=seed), make_tokens([3, 5, 2], seed=seed + 1)
    return source, torch.cat([torch.full((3, 1), 2), target], dim=1)


@settings(max_examples=30)
@given(subsets(), st.sampled_from(["pre", "post"]), st.booleans(), st.integers(0, 20))
@torch.no_grad()
def test_same_logits_and_translations(
    make_model: Maker, make_tokens: Tokens, gone: list[Head], norm: str, double: bool, seed: int
) -> None:
    model = make_model(seed, norm=norm, double=double)
    smaller = remove_heads(model, gone)
    source, target = inputs(make_tokens, seed)
    with masked(model, gone):
        expected = model(source, target)
        expected_best = beam_search(model, source, Search(beam=2), start=2, eos=3)
    torch.testing.assert_close(smaller(source, target), expected, atol=1e-5, rtol=0)
    best = beam_search(smaller, source, Search(beam=2), start=2, eos=3)
    if double:  # in float32 two hypotheses with equal scores may change places
        assert [[h.tokens for h in found] for found in best] == [
            [h.tokens for h in found] for found in expected_best
        ]
    assert smaller.head_list() == [head for head in EVERY if head not in gone]


@settings(max_examples=30)
@given(subsets(), st.sampled_from(["pre", "post"]), st.integers(0, 20))
@torch.no_grad()
def test_gates_fold_into_weights(
    make_model: Maker, make_tokens: Tokens, gone: list[Head], norm: str, seed: int
) -> None:
    """Gates of any value: multiplied in, then the zero ones cut out."""
    model = make_model(seed, norm=norm)
    source, target = inputs(make_tokens, seed)
    torch.manual_seed(seed)
    gates = {
        place: torch.rand(len(attention.heads), dtype=torch.float64)
        for place, attention in model.attentions().items()
    }
    gates = {place: gates[place] * mask for place, mask in mask_gates(model, gone).items()}
    with gated(model, gates):
        expected = model(source, target)
    folded = remove_heads(model, [])
    fold_gates(folded, gates)
    torch.testing.assert_close(folded(source, target), expected)
    torch.testing.assert_close(remove_heads(folded, gone)(source, target), expected)


@settings(max_examples=30)
@given(subsets(), subsets(), st.integers(0, 5))
@torch.no_grad()
def test_removing_twice_is_removing_at_once(
    make_model: Maker, make_tokens: Tokens, first: list[Head], second: list[Head], seed: int
) -> None:
    model = make_model(seed)
    source, target = inputs(make_tokens, seed)
    later = [head for head in second if head not in first]
    twice = remove_heads(remove_heads(model, first), later)
    once = remove_heads(model, first + later)
    torch.testing.assert_close(twice(source, target), once(source, target))


@pytest.mark.parametrize("site", SITES)
def test_parameters_are_really_gone(make_model: Maker, site: str) -> None:
    model = make_model(0)
    gone = [head for head in EVERY if head.site == site and head.layer == 1]
    smaller = remove_heads(model, gone)
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, smaller)]
    width, inner = 12, 12
    assert counts[0] - counts[1] == 4 * width * inner + 3 * inner
    assert smaller.attentions()[site, 1].in_weight.numel() == 0


@torch.no_grad()
def test_an_empty_layer_computes_no_attention(make_model: Maker, make_tokens: Tokens) -> None:
    """What comes out of it is its bias, whatever goes in."""
    model = make_model(0)
    smaller = remove_heads(model, [head for head in EVERY if head.site == "enc"])
    attention = smaller.attentions()["enc", 0]
    for length in (1, 4):
        out = attention(torch.randn(2, length, 12, dtype=torch.float64))
        assert torch.equal(out, attention.out_bias.expand(2, length, 12))


@torch.no_grad()
def test_a_large_model_shares_what_stays(
    make_model: Maker, make_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same logits, and no second copy of weights that do not change."""
    model, batch = make_model(3), inputs(make_tokens, 5)
    gone = [Head("enc", 0, 1), Head("dec", 1, 0)]
    expected = remove_heads(model, gone)(*batch)
    monkeypatch.setattr(gating, "LARGE", 1)
    smaller = remove_heads(model, gone)
    torch.testing.assert_close(smaller(*batch), expected, rtol=0, atol=0)
    before, after = dict(model.named_parameters()), dict(smaller.named_parameters())
    shared = {name for name in after if after[name].data_ptr() == before[name].data_ptr()}
    cut = {f"{place}.{name}" for place in ("encoder.0", "decoder.1") for name in CUT}
    assert set(after) - shared == cut
