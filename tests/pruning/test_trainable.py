"""What trains and what stays: the decoder is fixed while encoder heads are pruned (Sec. 6.2)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headcount.model.transformer import Transformer
from headcount.pruning.objective import train_parts


def trained(model: Transformer, *parts: str) -> set[str]:
    chosen = train_parts(model, parts)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert len(chosen) == len(names)
    return names


def test_encoder_only(make_model: Callable[..., Transformer]) -> None:
    names = trained(make_model(tie="target"), "encoder")
    assert "source_embedding.table.weight" in names, "source embeddings train"
    assert not {name for name in names if "cross" in name}, "cross-attention does not"
    assert {name.split(".")[0] for name in names} == {"source_embedding", "encoder", "encoder_norm"}


def test_position_biases_train_with_their_stack(make_model: Callable[..., Transformer]) -> None:
    model = make_model(relative_positions="layer")
    encoder, decoder = trained(model, "encoder"), trained(model, "decoder")
    assert {name for name in encoder if "positions" in name} == {
        f"encoder_positions.{layer}.table" for layer in range(len(model.encoder))
    }
    assert {name for name in decoder if "positions" in name} == {
        f"decoder_positions.{layer}.table" for layer in range(len(model.decoder))
    }


@pytest.mark.parametrize("tie", ["none", "target", "all"])
def test_parts_share_nothing_and_leave_nothing_out(
    make_model: Callable[..., Transformer], tie: str
) -> None:
    model = make_model(tie=tie, output_bias=True)
    every = {name for name, _ in model.named_parameters()}
    encoder, decoder = trained(model, "encoder"), trained(model, "decoder")
    assert not encoder & decoder
    assert trained(model, "encoder", "decoder") == every
    assert trained(model, "gates") == set()
    left = every - encoder - decoder
    shared = model.source_embedding.table.weight
    for name, parameter in model.named_parameters():
        assert (name in left) == (tie == "all" and parameter is shared)
