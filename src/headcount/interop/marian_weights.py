"""Weights of MarianMT by their names in `transformers`, and by ours: one table for both ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.model.transformer import Transformer

SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
OUTPUT = "lm_head.weight"
BIAS = "final_logits_bias"
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")

State = Mapping[str, Tensor]


def tie_of(state: State) -> str:
    """Which of the three vocabulary matrices of a MarianMT model are one."""
    inputs = _same(state[SOURCE], state[TARGET])
    output = _same(state[TARGET], state[OUTPUT])
    return {(True, True): "all", (True, False): "inputs", (False, True): "target"}.get(
        (inputs, output), "none"
    )


def from_marian(state: State, config: ModelConfig) -> dict[str, Tensor]:
    """The parameters of our model from those of MarianMT."""
    ours = {
        "source_embedding.table.weight": state[SOURCE],
        "target_embedding.table.weight": state[TARGET],
        "output_weight": state[OUTPUT],
    }
    if config.output_bias:
        ours["output_bias"] = state[BIAS].reshape(-1)
    for own, theirs in _attentions(config):
        for kind in ("weight", "bias"):
            parts = [state[f"{theirs}.{projection}.{kind}"] for projection in _PROJECTIONS]
            ours[f"{own}.in_{kind}"] = torch.cat(parts)
            ours[f"{own}.out_{kind}"] = state[f"{theirs}.out_proj.{kind}"]
    for own, theirs in _plain(config):
        for kind in ("weight", "bias"):
            ours[f"{own}.{kind}"] = state[f"{theirs}.{kind}"]
    return ours


def to_marian(model: Transformer) -> dict[str, Tensor]:
    """The parameters of MarianMT from those of a model with all of its heads."""
    ours = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    source, target = "source_embedding.table.weight", "target_embedding.table.weight"
    bias = ours.get("output_bias", torch.zeros(len(model.output_weight)))
    theirs = {
        "model.shared.weight": ours[source],
        SOURCE: ours[source],
        TARGET: ours[target],
        OUTPUT: ours["output_weight"],
        BIAS: bias.reshape(1, -1),
    }
    if model.config.tie not in ("inputs", "all"):
        del theirs["model.shared.weight"]
    for own, name in _attentions(model.config):
        for kind in ("weight", "bias"):
            parts = ours[f"{own}.in_{kind}"].chunk(3)
            for projection, part in zip(_PROJECTIONS, parts, strict=True):
                theirs[f"{name}.{projection}.{kind}"] = part
            theirs[f"{name}.out_proj.{kind}"] = ours[f"{own}.out_{kind}"]
    for own, name in _plain(model.config):
        for kind in ("weight", "bias"):
            theirs[f"{name}.{kind}"] = ours[f"{own}.{kind}"]
    return theirs


def _attentions(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Every attention: our name, their name."""
    for layer in range(config.encoder_layers):
        yield f"encoder.{layer}.self_attention.attention", f"model.encoder.layers.{layer}.self_attn"
    for layer in range(config.decoder_layers):
        own, theirs = f"decoder.{layer}", f"model.decoder.layers.{layer}"
        yield f"{own}.self_attention.attention", f"{theirs}.self_attn"
        yield f"{own}.cross_attention.attention", f"{theirs}.encoder_attn"


def _plain(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Every linear map and norm outside attention, which has a weight and a bias."""
    depths = {"encoder": config.encoder_layers, "decoder": config.decoder_layers}
    for side, depth in depths.items():
        for layer in range(depth):
            own, theirs = f"{side}.{layer}", f"model.{side}.layers.{layer}"
            yield f"{own}.self_attention.norm", f"{theirs}.self_attn_layer_norm"
            if side == "decoder":
                yield f"{own}.cross_attention.norm", f"{theirs}.encoder_attn_layer_norm"
            yield f"{own}.feed_forward.expand", f"{theirs}.fc1"
            yield f"{own}.feed_forward.contract", f"{theirs}.fc2"
            yield f"{own}.feed_forward.norm", f"{theirs}.final_layer_norm"


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))
