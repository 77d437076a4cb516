"""Sinusoids and position biases in one CTranslate2 model.

The engine adds no sinusoids where its first layer has a table of biases. So here biases are
written as relative position keys (Shaw et al. 2018), which the engine adds to the keys: each head
gets as many neurons more as there are heads, head h's query is 1 in the h-th of them, and the
relative key of an offset has all heads' biases for that offset there. Scores are the same.

An encoder may have such keys beside sinusoids in their asymmetric form. A decoder, whose steps come
one by one, needs the symmetric form, which counts as positions again; but the engine only looks at
its first layer, so that an idle one goes before it: in a pre-norm stack a layer of zeros changes
nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import UserError
from headcount.model.attention import Attention
from headcount.model.transformer import Transformer
from headcount.run import Run


def has_both(run: Run) -> bool:
    """Whether a run has both kinds of positions; refuses what the engine cannot carry."""
    config = run.config.model
    both = config.relative_positions != "none" and config.positions != "none"
    if both and config.norm == "post":
        raise UserError(
            f"{run.folder} is post-norm and has both position biases and positions that are added;"
            " CTranslate2 knows only one of them at a time.",
            "Export it to onnx.",
        )
    return both


def add_bias_keys(spec: Any, model: Transformer) -> None:
    """Turn the position biases of a model into keys of its (filled) specification."""
    for part, encoder_layer in zip(spec.encoder.layer, model.encoder_layers(), strict=True):
        attention = encoder_layer.self_attention.attention
        part.self_attention = _with_keys(part.self_attention, attention, asymmetric=True)
    for part, decoder_layer in zip(spec.decoder.layer, model.decoder_layers(), strict=True):
        attention = decoder_layer.self_attention.attention
        part.self_attention = _with_keys(part.self_attention, attention, asymmetric=False)
    spec.decoder.layer.insert(0, _idle_layer(spec.decoder, model))


def _with_keys(filled: Any, attention: Attention, asymmetric: bool) -> Any:
    """The specification of an attention with its biases as relative position keys."""
    from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec
    from ctranslate2.specs.model_spec import OPTIONAL

    relative, heads, width = attention.relative, len(attention.heads), attention.head_width
    assert relative is not None
    spec = MultiHeadAttentionSpec(
        self_attention=True,
        relative_position=not asymmetric,
        relative_asymmetric_position=asymmetric,
        head_dim=width + heads,
    )
    spec.layer_norm, spec.queries_scale = filled.layer_norm, attention.scale
    biases = relative.by_offset(attention.heads).detach() / attention.scale  # [offsets, heads]
    far = np.dtype("int32").type(relative.distance)
    keys = torch.nn.functional.pad(biases, (width, 0))
    if asymmetric:
        spec.relative_asymmetric_position_keys = as_array(keys)
        spec.relative_left_max_position = spec.relative_right_max_position = far
    else:  # the engine wants as many rows for later positions, which a decoder never sees
        keys = torch.nn.functional.pad(keys, (0, 0, 0, relative.distance))
        spec.relative_position_keys, spec.relative_position_values = as_array(keys), OPTIONAL

    def wider(x: Tensor) -> Tensor:
        """`[3, heads, head, ...]` with room for the biases behind each head's neurons."""
        room = x.new_zeros(*x.shape[:2], heads, *x.shape[3:])
        return torch.cat([x, room], 2)

    weight = wider(attention.in_weight.detach().view(3, heads, width, -1))
    bias = wider(attention.in_bias.detach().view(3, heads, width))
    bias[0, :, width:] = torch.eye(heads)
    out = wider(attention.out_weight.detach().T.view(1, heads, width, -1))
    spec.linear[0].weight, spec.linear[0].bias = (
        as_array(weight.flatten(0, 2)),
        as_array(bias.flatten()),
    )
    spec.linear[1].weight = as_array(out.flatten(0, 2).T)
    spec.linear[1].bias = filled.linear[1].bias
    return spec


def _idle_layer(decoder: Any, model: Transformer) -> Any:
    """A small decoder layer of zeros, which leaves the residual stream as it is."""
    from ctranslate2.specs.transformer_spec import TransformerDecoderLayerSpec

    config, heads = model.config, int(decoder.num_heads)
    rms, width = config.norm_kind == "rms", config.width
    layer = TransformerDecoderLayerSpec(ffn_glu=config.gated, rms_norm=rms, head_dim=1)

    def zeros(linear: Any, outputs: int, inputs: int) -> None:
        linear.weight = np.zeros((outputs, inputs), np.float32)
        linear.bias = np.zeros(outputs, np.float32)

    for block in (layer.self_attention, layer.attention, layer.ffn):
        block.layer_norm.gamma = np.zeros(width, np.float32)
        if not rms:
            block.layer_norm.beta = np.zeros(width, np.float32)
    into, out = layer.self_attention.linear
    zeros(into, 3 * heads, width)
    zeros(out, width, heads)
    queries, memory, out = layer.attention.linear
    zeros(queries, heads, width)
    zeros(memory, 2 * heads, width)
    zeros(out, width, heads)
    for linear in (layer.ffn.linear_0, *([layer.ffn.linear_0_noact] if config.gated else [])):
        zeros(linear, heads, width)
    zeros(layer.ffn.linear_1, width, heads)
    return layer


def as_array(tensor: Tensor) -> np.ndarray:
    """A parameter as the engine takes it."""
    array: np.ndarray = tensor.detach().float().contiguous().numpy()
    return array
