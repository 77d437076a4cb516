"""Gates on heads, units and blocks; removal of what is closed, and zeros in its place (Sec. 6.1).

Gates are put on and taken off from outside; no copy of the model is needed. What a gate multiplies:

    enc, dec, cross         a head's output, before `W^O`
    enc_ff, dec_ff          a block of hidden units, before the second matrix
    enc_layers, dec_layers  all that a residual block adds to the residual stream

So a block that is closed is its residual path, in post-norm with the norm of the sum; a block whose
heads or units are all closed still adds the constant bias of its last matrix.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.heads import ALL_SITES, BLOCKS, SITES, UNIT_SITES, Head, HeadLayout
from headcount.model.arithmetic import unit_counts
from headcount.model.attention import Attention
from headcount.model.layers import FeedForwardBlock
from headcount.model.transformer import LARGE, Transformer, blank_model, full_layout

Gates = Mapping[tuple[str, int], Tensor]


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Multiply heads, units or blocks by gates inside the context.

    `gates[site, layer]` is `[heads]`, one value for each head that the layer has, in its order,
    or `[batch, heads]` for other values in each sentence. Layers without an entry stay ungated.
    """
    gateables = model.gateables()
    before = {place: gateables[place].gate for place in gates}
    try:
        for place, gate in gates.items():
            expected = len(model.heads.layers[place[0]][place[1]])
            if gate.shape[-1] != expected:
                raise ValueError(f"{place} has {expected} heads, its gate {gate.shape[-1]}")
            gateables[place].gate = gate
        yield
    finally:
        for place, earlier in before.items():
            gateables[place].gate = earlier


def mask_gates(model: Transformer, closed: Iterable[Head]) -> dict[tuple[str, int], Tensor]:
    """Gates that are 0 for the closed heads and 1 for the others of the layers they are in."""
    gates: dict[tuple[str, int], Tensor] = {}
    for head in closed:
        place, own = (head.site, head.layer), model.heads.layers[head.site][head.layer]
        if place not in gates:
            gates[place] = torch.ones(len(own), device=model.output_weight.device)
        gates[place][own.index(head.index)] = 0.0
    return gates


def masked(model: Transformer, closed: Iterable[Head]) -> AbstractContextManager[None]:
    """Switch heads off inside the context; gates that are on already stay on the other heads."""
    gateables = model.gateables()
    gates = mask_gates(model, closed)
    for place, gate in gates.items():
        before = gateables[place].gate
        if before is not None:
            gates[place] = gate.to(before) * before
    return gated(model, gates)


def remove_heads(model: Transformer, closed: Iterable[Head]) -> Transformer:
    """A new, smaller model without the given heads, units or blocks; the old one is untouched.

    It gives the same logits as the old one with these masked. A layer may lose all of its heads:
    then only its residual path and the constant output bias remain. A block that goes takes its
    heads or units with it.
    """
    gone, own = set(closed), set(model.head_list(ALL_SITES))
    if gone - own:
        raise ValueError(f"no such heads: {sorted(map(str, gone - own))}")
    return with_layout(model, model.heads.keeping(own - gone, ALL_SITES))


def with_layout(model: Transformer, layout: HeadLayout) -> Transformer:
    """A new model with the heads, units and blocks of a layout; those it did not have are zero.

    A head of zeros attends evenly to values of zero, and `W^O` has zeros for it; a unit of zeros
    likewise: they change nothing and cost time. A large model shares its other weights with the new
    one, so that they are not in memory twice.
    """
    old, other = model.state_dict(), _blank_like(model, model.config, layout)
    state = other.state_dict()
    names = {module: name for name, module in model.named_modules()}
    resized: dict[str, Tensor] = {}
    for (site, layer), attention in model.attentions().items():
        wanted = other.heads.layers[site][layer]
        if wanted == attention.heads:
            continue
        for name, tensor in _attention_with(attention, wanted).items():
            resized[f"{names[attention]}.{name}"] = tensor
    for (site, layer), network in model.feed_forwards().items():
        wanted = other.heads.layers[site][layer]
        if wanted == network.blocks:
            continue
        for name, tensor in _network_with(network, wanted, model.config).items():
            resized[f"{names[network]}.{name}"] = tensor
    known = old | {name: tensor for name, tensor in resized.items() if name in old}
    if sum(tensor.numel() for tensor in model.parameters()) >= LARGE:
        for name, parameter in other.named_parameters():
            if name in known:  # else it belongs to a block that was gone
                parameter.data = known[name].contiguous()  # shared where nothing changes
    else:
        other.load_state_dict({name: known.get(name, tensor) for name, tensor in state.items()})
    return other.train(model.training)


def _attention_with(attention: Attention, heads: tuple[int, ...]) -> dict[str, Tensor]:
    """The weights of an attention that has the given heads, with zeros for new ones."""

    def neurons(own: tuple[int, ...], parts: int = 1) -> list[tuple[int, int, int]]:
        width = range(attention.head_width)
        return [(part, head, n) for part in range(parts) for head in own for n in width]

    stacked = neurons(attention.heads, 3), neurons(heads, 3)  # queries, keys and values
    return {
        "in_weight": _rows_of(attention.in_weight, *stacked),
        "in_bias": _rows_of(attention.in_bias, *stacked),
        "out_weight": _rows_of(attention.out_weight.T, neurons(attention.heads), neurons(heads)).T,
    }


def _network_with(
    network: FeedForwardBlock, blocks: tuple[int, ...], config: ModelConfig
) -> dict[str, Tensor]:
    """The weights of a feed-forward network that has the given blocks of units."""

    def units(own: tuple[int, ...]) -> list[int]:
        return [unit for block in own for unit in config.units_of(network.part, block)]

    rows = units(network.blocks), units(blocks)
    weights = {"contract.weight": _rows_of(network.contract.weight.T, *rows).T}
    for name, linear in (("expand", network.expand), ("multiply", network.multiply)):
        if linear is not None:
            weights[f"{name}.weight"] = _rows_of(linear.weight, *rows)
            weights[f"{name}.bias"] = _rows_of(linear.bias, *rows)
    return weights


def _rows_of(tensor: Tensor, old: Sequence[Hashable], new: Sequence[Hashable]) -> Tensor:
    """A tensor whose rows are called `old`, with the rows `new`; what it does not have is zero."""
    places = {row: place for place, row in enumerate(old)}
    index = torch.tensor([places.get(row, len(old)) for row in new], dtype=torch.long)
    zeros = tensor.new_zeros(1, *tensor.shape[1:])
    return torch.cat([tensor.detach(), zeros])[index.to(tensor.device)]


def fold_gates(model: Transformer, gates: Gates) -> None:
    """Multiply fixed gates into the weights in place, so that the model no longer needs them."""
    attentions, networks = model.attentions(), model.feed_forwards()
    with torch.no_grad():
        for (site, layer), gate in gates.items():
            if site in SITES:
                attention = attentions[site, layer]
                attention.out_weight.mul_(gate.repeat_interleave(attention.head_width))
            elif site in UNIT_SITES:
                network = networks[site, layer]
                network.contract.weight.mul_(gate[network.unit_block])
            else:
                blocks = model.heads.layers[site][layer]
                for index, each in zip(blocks, gate, strict=True):
                    holder = BLOCKS[site][index], layer
                    for tensor in _last_map(model, *holder):
                        tensor.mul_(each)


def _last_map(model: Transformer, site: str, layer: int) -> tuple[Tensor, Tensor]:
    """Weight and bias of the last matrix of a residual block."""
    if site in SITES:
        attention = model.attentions()[site, layer]
        return attention.out_weight, attention.out_bias
    contract = model.feed_forwards()[site, layer].contract
    return contract.weight, contract.bias


def even_layout(model: Transformer) -> HeadLayout:
    """The smallest layout for an engine that has one number of heads per side and every block.

    Feed-forward networks keep their own widths. An attention without heads gets some of zeros, and
    a network without units one block, as engines cannot do without.
    """
    full, own = full_layout(model.config).layers, model.heads.layers
    layers = dict(full)
    for sites in (("enc",), ("dec", "cross")):
        most = max([1, *(len(heads) for site in sites for heads in own[site])])
        for site in sites:
            possible = range(model.config.heads_at(site))
            layers[site] = tuple(_filled(heads, most, possible) for heads in own[site])
    for site in UNIT_SITES:
        layers[site] = tuple(blocks or (0,) for blocks in own[site])
    return HeadLayout(layers)


def zeros_added(model: Transformer, larger: Transformer) -> tuple[int, int]:
    """How many heads and how many units of zeros a padded model has."""
    heads = len(larger.head_list()) - len(model.head_list())
    units = [sum(unit_counts(each).values()) for each in (larger, model)]
    return heads, units[0] - units[1]


def narrowed(model: Transformer, one_width: bool = False) -> Transformer:
    """The same model as one whose full feed-forward networks are no wider than they need be.

    Its units are not in blocks any more. `one_width`: both sides have the same width.
    """
    widths = {site: [1] for site in UNIT_SITES}
    for (site, _), network in model.feed_forwards().items():
        widths[site].append(len(network.unit_block))
    encoder, decoder = (max(widths[site]) for site in UNIT_SITES)
    if one_width:
        encoder = decoder = max(encoder, decoder)
    config = model.config.model_copy(
        update={
            "ff_block": 1,
            "ff_width": encoder,
            "decoder_ff_width": None if encoder == decoder else decoder,
        }
    )
    layers = dict(model.heads.layers)
    for site in UNIT_SITES:
        layers[site] = tuple(tuple(range(width)) for width in widths[site][1:])
    other = _blank_like(model, config, HeadLayout(layers))
    other.load_state_dict(model.state_dict())
    return other.train(model.training)


def full_heads(model: Transformer) -> Transformer:
    """The model with as many heads, units and blocks as it had before any was pruned."""
    return with_layout(model, full_layout(model.config))


def _filled(heads: tuple[int, ...], count: int, possible: range) -> tuple[int, ...]:
    """`count` heads: those of the layer and some that it has lost."""
    lost = [index for index in possible if index not in heads]
    return tuple(sorted([*heads, *lost[: count - len(heads)]]))


_MODULES = {"enc": "self_attention", "dec": "self_attention", "cross": "cross_attention"}


def repacked(model: Transformer) -> Transformer:
    """A pre-norm model in as few layers as its blocks need: engines know no missing blocks.

    Blocks keep their order and move into the first layer that has room for them: where layer 1 has
    lost its feed-forward network and layer 2 its attention, both become one layer. In post-norm a
    removed block leaves a norm, and nothing can move.
    """
    config, own = model.config, model.heads.layers
    if config.norm != "pre":
        return model
    moves = {site: _packed(own[site]) for site in BLOCKS}
    depths = {site: len(own[site]) and 1 + max([0, *moves[site].values()]) for site in BLOCKS}
    smaller = config.model_copy(
        update={"encoder_layers": depths["enc_layers"], "decoder_layers": depths["dec_layers"]}
    )
    layers: dict[str, list[tuple[int, ...]]] = {
        site: [()] * len(each) for site, each in full_layout(smaller).layers.items()
    }
    moved: dict[tuple[str, str, str], int] = {}  # stack, old layer, module: new layer
    for site, places in moves.items():
        stack = "encoder" if site == "enc_layers" else "decoder"
        for (old, index), new in places.items():
            holder = BLOCKS[site][index]
            layers[site][new] += (index,)
            layers[holder][new] = own[holder][old]
            moved[stack, str(old), _MODULES.get(holder, "feed_forward")] = new
    layout = HeadLayout({site: tuple(each) for site, each in layers.items()})
    other = _blank_like(model, smaller, layout)
    state = other.state_dict()
    for name, tensor in model.state_dict().items():
        stack, *rest = name.split(".")
        if stack in ("encoder", "decoder"):
            to = moved.get((stack, rest[0], rest[1]))
            name = f"{stack}.{to}.{'.'.join(rest[1:])}"
        elif stack.endswith("_positions") and config.relative_positions == "layer":
            to = moved.get((stack.removesuffix("_positions"), rest[0], "self_attention"))
            name = f"{stack}.{to}.table"
        if name in state:
            state[name] = tensor
    other.load_state_dict(state)
    return other.train(model.training)


def _packed(layers: Sequence[Sequence[int]]) -> dict[tuple[int, int], int]:
    """The new layer of each block `(layer, index)` that is there."""
    packed: dict[tuple[int, int], int] = {}
    new, last = 0, -1
    for layer, blocks in enumerate(layers):
        for index in blocks:
            if index <= last:
                new += 1
            packed[layer, index], last = new, index
    return packed


def _blank_like(model: Transformer, config: ModelConfig, layout: HeadLayout) -> Transformer:
    """A model of the same vocabularies, to be filled."""
    return blank_model(
        config,
        model.source_embedding.table.num_embeddings,
        model.target_embedding.table.num_embeddings,
        model.pad,
        layout,
        model.target_pad,
    ).to(device=model.output_weight.device, dtype=model.output_weight.dtype)
