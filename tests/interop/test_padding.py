from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.heads import Head, HeadLayout
from headcount.model.gating import even_layout, full_heads, remove_heads, with_layout
from headcount.model.transformer import Transformer

HEADS = HeadLayout.full(2, 2, 3).heads()


def pruned(make_model: Callable[..., Transformer], gone: Iterable[Head], **changes: Any) -> Any:
    """A float64 model without some heads."""
    return remove_heads(make_model(1, **changes), gone)


@settings(max_examples=15)
@given(st.sets(st.sampled_from(HEADS)), st.sampled_from(["pre", "post"]))
def test_heads_of_zeros_change_nothing(
    make_model: Any, make_tokens: Any, gone: set[Head], norm: str
) -> None:
    model = pruned(make_model, gone, norm=norm)
    source, target = make_tokens([5, 2]), make_tokens([3, 6], seed=1)
    with torch.no_grad():
        expected = model(source, target)
        for layout in (even_layout(model), full_heads(model).heads):
            padded = with_layout(model, layout)
            torch.testing.assert_close(padded(source, target), expected, atol=1e-12, rtol=0)


@settings(max_examples=30)
@given(st.sets(st.sampled_from(HEADS)))
def test_one_number_of_heads_a_side_and_no_more_than_needed(
    make_model: Any, gone: set[Head]
) -> None:
    model = pruned(make_model, gone)
    layout = even_layout(model)
    assert set(model.head_list()) <= set(layout.heads())
    for sites in (("enc",), ("dec", "cross")):
        counts = {len(heads) for site in sites for heads in layout.layers[site]}
        most = max(len(heads) for site in sites for heads in model.heads.layers[site])
        assert counts == {max(1, most)}


def test_full_heads_come_back_in_their_places(make_model: Any) -> None:
    model = pruned(make_model, [Head("enc", 0, 1)])
    back = full_heads(model).attentions()["enc", 0]
    assert back.heads == (0, 1, 2)
    width = back.head_width
    assert not back.out_weight[:, width : 2 * width].any()
    own = model.attentions()["enc", 0]
    assert torch.equal(back.out_weight[:, 2 * width :], own.out_weight[:, width:])


def test_decoder_with_heads_of_its_own_number(make_model: Any) -> None:
    model = pruned(make_model, [Head("dec", 0, 0)], decoder_heads=2)
    assert [len(heads) for heads in even_layout(model).layers["enc"]] == [3, 3]
    assert [len(heads) for heads in even_layout(model).layers["dec"]] == [2, 2]


@pytest.mark.parametrize("site", ["enc", "dec"])
def test_a_side_without_heads_gets_one(make_model: Any, site: str) -> None:
    sites = ("enc",) if site == "enc" else ("dec", "cross")
    model = pruned(make_model, [head for head in HEADS if head.site in sites])
    assert {len(heads) for heads in even_layout(model).layers[site]} == {1}
