"""Gates on heads, removal of closed heads, and heads of zeros in their place (Sec. 6.1).

Gates are put on and taken off from outside; no copy of the model is needed.

A head of zeros has a query, key and value of zero everywhere, so it attends evenly to values of
zero, and `W^O` has zeros for it: it changes nothing and costs time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from headcount.heads import Head, HeadLayout
from headcount.model.attention import Attention
from headcount.model.transformer import Transformer, blank_model, full_layout

Gates = Mapping[tuple[str, int], Tensor]


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Multiply head outputs by gates inside the context.

    `gates[site, layer]` is `[heads]`, one value for each head that the layer has, in its order,
    or `[batch, heads]` for other values in each sentence. Layers without an entry stay ungated.
    """
    attentions = model.attentions()
    before = {place: attentions[place].gate for place in gates}
    try:
        for place, gate in gates.items():
            expected = len(attentions[place].heads)
            if gate.shape[-1] != expected:
                raise ValueError(f"{place} has {expected} heads, its gate {gate.shape[-1]}")
            attentions[place].gate = gate
        yield
    finally:
        for place, earlier in before.items():
            attentions[place].gate = earlier


def mask_gates(model: Transformer, closed: Iterable[Head]) -> dict[tuple[str, int], Tensor]:
    """Gates that are 0 for the closed heads and 1 for the others of the layers they are in."""
    attentions = model.attentions()
    gates: dict[tuple[str, int], Tensor] = {}
    for head in closed:
        attention = attentions[head.site, head.layer]
        place = (head.site, head.layer)
        if place not in gates:
            gates[place] = torch.ones(len(attention.heads), device=attention.out_bias.device)
        gates[place][attention.heads.index(head.index)] = 0.0
    return gates


def masked(model: Transformer, closed: Iterable[Head]) -> AbstractContextManager[None]:
    """Switch heads off inside the context; gates that are on already stay on the other heads."""
    attentions = model.attentions()
    gates = mask_gates(model, closed)
    for place, gate in gates.items():
        before = attentions[place].gate
        if before is not None:
            gates[place] = gate.to(before) * before
    return gated(model, gates)


def remove_heads(model: Transformer, closed: Iterable[Head]) -> Transformer:
    """A new, smaller model without the given heads; the old one is untouched.

    It gives the same logits as the old one with these heads masked. A layer may lose all heads:
    then only its residual path and the constant output bias remain.
    """
    gone = set(closed)
    missing = gone - set(model.head_list())
    if missing:
        raise ValueError(f"no such heads: {sorted(map(str, missing))}")
    layout = model.heads.keeping(set(model.head_list()) - gone)
    smaller = blank_model(
        model.config,
        model.source_embedding.table.num_embeddings,
        model.target_embedding.table.num_embeddings,
        model.pad,
        layout,
        model.target_pad,
    ).to(device=model.output_weight.device, dtype=model.output_weight.dtype)
    state = dict(model.state_dict())
    for (site, layer), attention in model.attentions().items():
        kept = [i for i, h in enumerate(attention.heads) if Head(site, layer, h) not in gone]
        cut = _cut(attention, _prefix(model, attention), kept)
        state.update({name: tensor for name, tensor in cut.items() if name in state})
    smaller.load_state_dict(state)
    return smaller.train(model.training)


def fold_gates(model: Transformer, gates: Gates) -> None:
    """Multiply fixed gates into `W^O` in place, so that the model no longer needs them."""
    attentions: Mapping[tuple[str, int], Attention] = model.attentions()
    with torch.no_grad():
        for place, gate in gates.items():
            attention = attentions[place]
            attention.out_weight.mul_(gate.repeat_interleave(attention.head_width)[None, :])


def _cut(attention: Attention, prefix: str, kept: list[int]) -> dict[str, Tensor]:
    """The parameters of an attention with only the heads at the given places."""
    width = attention.head_width
    device = attention.out_bias.device
    inner = torch.tensor(
        [place * width + neuron for place in kept for neuron in range(width)],
        dtype=torch.long,
        device=device,
    )
    stacked = torch.cat(
        [part * attention.inner + inner for part in range(3)]
    )  # queries, keys, values
    return {
        f"{prefix}in_weight": attention.in_weight.detach()[stacked],
        f"{prefix}in_bias": attention.in_bias.detach()[stacked],
        f"{prefix}out_weight": attention.out_weight.detach()[:, inner],
        f"{prefix}out_bias": attention.out_bias.detach(),
    }


def _prefix(model: Transformer, attention: Attention) -> str:
    for name, module in model.named_modules():
        if module is attention:
            return f"{name}."
    raise ValueError("this attention is not part of the model")


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
