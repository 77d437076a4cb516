"""Multiply-adds counted from shapes against what torch counts while the model works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headcount.heads import Head
from headcount.model.arithmetic import encoder_products, translation_products
from headcount.model.gating import remove_heads
from headcount.model.recording import record
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]
GONE = [Head("enc", 0, 1), *(Head("enc", 1, i) for i in range(3)), Head("dec", 0, 0)]
GONE += [Head("cross", 1, 0), Head("cross", 1, 2)]


def counted(model: Transformer, work: Callable[[], None]) -> int:
    """Multiply-adds of all matrix products; attention in the open, where torch can see them."""
    counter = FlopCounterMode(display=False)
    model.requires_grad_(False)
    with torch.no_grad(), record(model, {"weights"}), counter:
        work()
    flops = counter.get_total_flops()
    assert flops % 2 == 0
    return flops // 2


@pytest.mark.parametrize("gone", [[], GONE])
@pytest.mark.parametrize("sizes", [{}, {"heads": 4, "head_width": 5, "ff_width": 9}])
def test_encoder(make_model: Maker, gone: list[Head], sizes: dict[str, int]) -> None:
    model = remove_heads(make_model(0, **sizes), gone)
    lengths = [3, 7, 1]

    def work() -> None:
        for length in lengths:
            model.encode(torch.full((1, length), 5))

    assert encoder_products(model, lengths) == counted(model, work)


@pytest.mark.parametrize("gone", [[], GONE])
@pytest.mark.parametrize("sizes", [{}, {"decoder_heads": 4, "decoder_ff_width": 9}])
def test_translation(make_model: Maker, gone: list[Head], sizes: dict[str, int]) -> None:
    model = remove_heads(make_model(0, ff_width=10, **sizes), gone)
    pairs = [(3, 5), (6, 1), (2, 4)]

    def work() -> None:
        for source, target in pairs:
            cache = model.start(*model.encode(torch.full((1, source), 5)))
            for _ in range(target):
                model.logits(model.step(torch.full((1, 1), 7), cache))

    sources, targets = zip(*pairs, strict=True)
    assert translation_products(model, sources, targets) == counted(model, work)


def test_no_heads_no_attention(make_model: Maker) -> None:
    """What is left of an encoder without heads are its feed-forward networks."""
    model = make_model(0)
    empty = remove_heads(model, model.heads.heads(("enc",)))
    assert encoder_products(empty, [10]) == 2 * 10 * 2 * 12 * 16
