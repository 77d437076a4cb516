"""One decoder step: what `Transformer.decode` computes, for the newest position alone.

A step of a small model is a hundred tiny operations, and calling them costs more than what they
compute. So the weights of a layer are gathered once per search, a step calls no modules, and the
hypotheses of all sentences are the rows of one matrix. There is no dropout here, and nothing is
recorded.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headcount.model.attention import Attention
from headcount.model.cache import DecoderCache, Step
from headcount.model.layers import Block, DecoderLayer, FeedForwardBlock
from headcount.model.norm import norm_function


def layer_step(layer: DecoderLayer, index: int) -> Step:
    """The step of a whole layer, whose keys and values are number `index` in the cache."""
    own = _around(layer.self_attention, _self_attention(layer.self_attention.attention, index))
    cross = _around(layer.cross_attention, _cross_attention(layer.cross_attention.attention, index))
    network = _around(layer.feed_forward, _network(layer.feed_forward))
    return lambda x, cache: network(cross(own(x, cache), cache), cache)


def _around(block: Block, function: Step) -> Step:
    """`Block.around`."""
    norm = norm_function(block.norm)
    if block.pre_norm:
        return lambda x, cache: x + function(norm(x), cache)
    return lambda x, cache: norm(x + function(x, cache))


def _self_attention(attention: Attention, index: int) -> Step:
    """Write the keys and values of the newest position, then attend to the prefix."""
    if not attention.heads:
        return _constant(attention)
    weight, bias = attention.in_weight.t(), attention.in_bias
    shape = (3, len(attention.heads), attention.head_width)
    finish, relative, heads = _finish(attention), attention.relative, attention.heads

    def step(x: Tensor, cache: DecoderCache) -> Tensor:
        stacked = torch.addmm(bias, x, weight)  # [batch * beam, 3 inner]
        apart = stacked.view(cache.batch, cache.beam, *shape)
        apart = apart.permute(2, 3, 0, 1, 4)  # [3, heads, batch, beam, head]
        cache.room[index].copy_(apart[1:])
        visible = cache.visible[index]
        if relative is not None:
            visible = visible + cache.for_places(relative.last_row(cache.steps, heads))
        return finish(apart[0], cache.keys[index], cache.values[index], visible)

    return step


def _cross_attention(attention: Attention, index: int) -> Step:
    """Attend to the source."""
    if not attention.heads:
        return _constant(attention)
    weight, bias = attention.in_weight[: attention.inner].t(), attention.in_bias[: attention.inner]
    shape = (len(attention.heads), attention.head_width)
    finish = _finish(attention)

    def step(x: Tensor, cache: DecoderCache) -> Tensor:
        queries = torch.addmm(bias, x, weight).view(cache.batch, cache.beam, *shape)
        queries = queries.permute(2, 0, 1, 3)  # [heads, batch, beam, head]
        keys, values = cache.source_keys[index], cache.source_values[index]
        return finish(queries, keys, values, cache.source_visible[index])

    return step


def _finish(attention: Attention) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """What follows the projections: `Attention.attend` of queries `[heads, batch, beam, head]`.

    With so few queries three small products are faster than the fused kernel.
    """
    heads, inner, scale = len(attention.heads), attention.inner, attention.scale
    weight, bias, gate = attention.out_weight.t(), attention.out_bias, attention.gate

    def finish(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor) -> Tensor:
        _, batch, beam, width = queries.shape
        queries = queries.reshape(heads * batch, beam, width)
        scores = torch.baddbmm(visible, queries, keys, alpha=scale)  # [heads * batch, beam, places]
        outputs = torch.bmm(scores.softmax(-1), values)  # [heads * batch, beam, head]
        if gate is not None:
            gates = gate.to(outputs.dtype).expand(batch, heads).t()
            outputs = outputs.view(heads, batch, beam, width) * gates[:, :, None, None]
        merged = outputs.view(heads, batch * beam, width).transpose(0, 1).reshape(-1, inner)
        return torch.addmm(bias, merged, weight)  # [batch * beam, width]

    return finish


def _constant(attention: Attention) -> Step:
    """A layer without heads computes no attention: its output is the constant output bias."""
    bias = attention.out_bias
    return lambda x, cache: bias


def _network(block: FeedForwardBlock) -> Step:
    expand, expand_bias = block.expand.weight.t(), block.expand.bias
    contract, contract_bias = block.contract.weight.t(), block.contract.bias
    activation, factor = block.activation, block.multiply

    def step(x: Tensor, cache: DecoderCache) -> Tensor:
        hidden = activation(torch.addmm(expand_bias, x, expand))  # [batch * beam, ff]
        if factor is not None:
            hidden = hidden * torch.addmm(factor.bias, x, factor.weight.t())
        return torch.addmm(contract_bias, hidden, contract)

    return step
