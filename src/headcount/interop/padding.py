"""Heads of zeros for engines that need the same number of heads in every layer.

A head of zeros has a query, key and value of zero everywhere, so it attends evenly to values of
zero, and `W^O` has zeros for it: it changes nothing and costs time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.heads import HeadLayout
from headcount.model.attention import Attention
from headcount.model.blank import blank_model
from headcount.model.transformer import Transformer, full_layout

SIDES = {"encoder": ("enc",), "decoder": ("dec", "cross")}


def even_layout(model: Transformer) -> HeadLayout:
    """The smallest layout with one number of heads in the encoder and one in the decoder.

    A side without any head gets one, as engines have no attention without heads.
    """
    layers: dict[str, tuple[tuple[int, ...], ...]] = {}
    for sites in SIDES.values():
        own = {site: model.heads.layers[site] for site in sites}
        most = max([1, *(len(heads) for site in sites for heads in own[site])])
        for site in sites:
            possible = range(model.config.heads_at(site))
            layers[site] = tuple(_filled(heads, most, possible) for heads in own[site])
    return HeadLayout(layers)


def pad_heads(model: Transformer, layout: HeadLayout) -> Transformer:
    """A new model with all heads of `layout`, those that `model` does not have being zero."""
    larger = blank_model(
        model.config,
        model.source_embedding.table.num_embeddings,
        model.target_embedding.table.num_embeddings,
        model.pad,
        layout,
        model.target_pad,
    )
    state = dict(model.state_dict())
    names = {module: name for name, module in model.named_modules()}
    wider = larger.attentions()
    for place, attention in model.attentions().items():
        for name, tensor in _spread(attention, wider[place].heads).items():
            if f"{names[attention]}.{name}" in state:  # biases may be constant zeros
                state[f"{names[attention]}.{name}"] = tensor
    weight = model.output_weight
    larger.to(device=weight.device, dtype=weight.dtype).load_state_dict(state)
    return larger.eval()


def full_heads(model: Transformer) -> Transformer:
    """The model with as many heads as it had before any was pruned."""
    return pad_heads(model, full_layout(model.config))


def _filled(heads: tuple[int, ...], count: int, possible: range) -> tuple[int, ...]:
    """`count` heads: those of the layer and some that it has lost."""
    lost = [index for index in possible if index not in heads]
    return tuple(sorted([*heads, *lost[: count - len(heads)]]))


def _spread(attention: Attention, heads: tuple[int, ...]) -> dict[str, Tensor]:
    """The parameters of an attention that has the given heads, with zeros for the new ones."""
    width, size = attention.head_width, attention.out_bias.shape[0]
    indices = [heads.index(head) for head in attention.heads]
    inner = len(heads) * width
    rows = torch.tensor([p * width + n for p in indices for n in range(width)], dtype=torch.long)
    stacked = torch.cat([part * inner + rows for part in range(3)])  # queries, keys, values
    in_weight = attention.in_weight.new_zeros(3 * inner, size)
    in_bias = attention.in_bias.new_zeros(3 * inner)
    out_weight = attention.out_weight.new_zeros(size, inner)
    with torch.no_grad():
        in_weight[stacked] = attention.in_weight
        in_bias[stacked] = attention.in_bias
        out_weight[:, rows] = attention.out_weight
    return {
        "in_weight": in_weight,
        "in_bias": in_bias,
        "out_weight": out_weight,
        "out_bias": attention.out_bias.detach(),
    }
