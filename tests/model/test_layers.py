"""Residual blocks: where the norm stands, what a feed-forward block computes, what dropout does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.model.layers import Block, FeedForwardBlock
from headcount.model.recording import Recording, Tape
from headcount.model.transformer import Transformer, full_layout


def config(**changes: object) -> ModelConfig:
    return ModelConfig(**({"width": 8, "ff_width": 10, "heads": 2, "layers": 1} | changes))


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_residual_block(norm: str) -> None:
    block = Block("enc", 0, config(norm=norm), Tape()).eval()
    torch.nn.init.normal_(block.norm.weight)
    x = torch.randn(2, 3, 8)

    def normed(y: torch.Tensor) -> torch.Tensor:
        centred = y - y.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + block.norm.eps).sqrt()
        return centred / scale * block.norm.weight + block.norm.bias

    expected = x + normed(x).sin() if norm == "pre" else normed(x + x.sin())
    torch.testing.assert_close(block.around(x, torch.sin), expected)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5))),
        ("swish", lambda x: x / (1 + torch.exp(-x))),
    ],
)
def test_feed_forward(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    settings = config(activation=name, norm="post")
    block = FeedForwardBlock("enc_ff", 0, settings, full_layout(settings), Tape()).eval()
    x = torch.randn(2, 3, 8)
    hidden = function(x @ block.expand.weight.T + block.expand.bias)
    output = hidden @ block.contract.weight.T + block.contract.bias
    torch.testing.assert_close(block(x), F.layer_norm(x + output, (8,)))


def test_a_block_tells_what_passed_through_it() -> None:
    tape = Tape()
    block = Block("enc", 0, config(norm="post"), tape).eval()
    kinds = ["residual", "input", "output", "sum", "result"]
    tape.recording = Recording(kinds)
    x = torch.randn(1, 2, 8)
    result = block.around(x, torch.cos)
    residual, inside, output, total, left = (tape.recording["enc", 0, kind] for kind in kinds)
    assert torch.equal(residual, x)
    assert torch.equal(inside, x)
    assert torch.equal(output, x.cos())
    assert torch.equal(total, residual + output)
    assert torch.equal(left, result)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_and_only_there(
    kind: str, make_model: Callable[..., Transformer], make_tokens: Callable[..., torch.Tensor]
) -> None:
    model = make_model(**{"dropout": 0.0, kind: 0.5})
    source, target = make_tokens([5, 4]), make_tokens([4, 6])
    with torch.no_grad():
        still = model(source, target)
        assert torch.equal(still, model(source, target))
        model.train()
        torch.manual_seed(1)
        first = model(source, target)
        assert not torch.allclose(first, still)
        assert not torch.allclose(first, model(source, target))
        torch.manual_seed(1)
        assert torch.equal(first, model(source, target))
