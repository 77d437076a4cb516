"""One decoder step: what `Transformer.decode` computes, for the newest position alone.

A step of a small model is a hundred tiny operations, and calling them costs more than what they
compute. So the weights of a layer are gathered once per search, a step calls no modules, and the
hypotheses of all sentences are the rows of one matrix. There is no dropout here, and nothing is
recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from headcount.model.attention import Attention, KeysValues
from headcount.model.layers import Block, DecoderLayer, FeedForwardBlock
from headcount.model.primitives import norm_function

_FIRST_CAPACITY = 16

Step = Callable[[Tensor, "DecoderCache"], Tensor]
"""What a layer does to the newest position, `[batch * beam, width]` to the same shape."""


class DecoderCache:
    """Keys and values of all decoder layers, for the source and for the steps so far.

    A sentence may have several hypotheses (a beam). They share one copy of the source's keys and
    values: to the attention the hypotheses of a sentence are just several queries. Likewise they
    share the past of the target: what any of them has written stays where it is, and a mask tells
    each hypothesis which of these positions are its own. So keys and values never move when
    hypotheses change places, only the mask does.

    All layers' heads are in one tensor, `[2, heads, batch, places, head]` for keys and values, so
    that what a step needs is cut once for all layers. A layer with index i finds in `keys[i]`
    `[its heads * batch, head, places]` and `values[i]` `[its heads * batch, places, head]` what
    was written up to and including this step, in `room[i]` `[2, its heads, batch, beam, head]`
    where to write this step's, and in `source_keys[i]` and `source_values[i]` the source's.
    `visible[i]` and `source_visible[i]` are 0 where a hypothesis may look, else -inf; they have
    the shape of the layer's attention scores, `[its heads * batch, beam, places]`, or can be
    expanded to it.
    """

    room: Sequence[Tensor]
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    visible: Sequence[Tensor]
    source_keys: Sequence[Tensor]
    source_values: Sequence[Tensor]
    source_visible: Sequence[Tensor]

    def __init__(
        self,
        layers: list[Step],
        source: list[KeysValues],
        mask: Tensor | None,
        heads: list[int],
        like: Tensor,
        beam: int,
    ) -> None:
        """`layers` are the functions that compute one step of each layer.

        `source` are each layer's keys and values `[batch, heads, source, head]` of the source.
        `mask` is boolean, `[batch, 1, 1, source]`, true where a token is real. `heads` are the
        numbers of heads of each layer's self-attention. `like` `[batch, ...]` gives the number of
        sentences, the data type and the device.
        """
        self.layers = layers
        self.beam = beam
        self.steps = 0
        self.batch = len(like)
        self._heads = heads
        self._source_heads = [keys.shape[1] for keys, _ in source]
        keys, values = (torch.cat([pair[i] for pair in source], dim=1) for i in (0, 1))
        self._source = torch.stack([keys, values]).transpose(1, 2).contiguous()
        nothing_hidden = like.new_zeros(1, 1, 1)
        self.visible = [nothing_hidden] * len(heads)
        self.source_visible = [nothing_hidden] * len(heads)
        self._mask: Tensor | None = None  # [batch, 1, source]
        if mask is not None:
            self._mask = like.new_zeros(mask.shape).masked_fill_(~mask, -torch.inf)[:, 0]
        places = _FIRST_CAPACITY * beam
        self._own = like.new_empty(2, sum(heads), self.batch, places, keys.shape[-1])
        self._visible = like.new_empty(self.batch, beam, 0, beam)  # [batch, beam, steps, beam]
        self._itself = like.new_full((beam, beam), -torch.inf).fill_diagonal_(0.0)[:, None]
        self._cut_source()

    def begin_step(self) -> None:
        """Make room for one more step, which each hypothesis may look at itself."""
        used = self.steps * self.beam
        if used == self._own.shape[3]:
            self._own = torch.cat([self._own, torch.empty_like(self._own)], dim=3)
        self.steps += 1
        seen = self._own[:, :, :, : used + self.beam]
        self.room = seen[:, :, :, used:].split_with_sizes(self._heads, 1)
        self.keys, self.values = self._by_layer(seen, self._heads)
        if self.beam > 1:
            itself = self._itself.expand(self.batch, -1, -1, -1)  # [batch, beam, 1, beam]
            self._visible = torch.cat([self._visible, itself], dim=2)
            self.visible = self._for_heads(self._visible.flatten(2), self._heads)

    def for_places(self, steps: Tensor) -> Tensor:
        """Numbers of each head and step, `[heads, steps]`, at all places of the cache.

        `[heads * batch, 1, places]`: a step has one place for each hypothesis.
        """
        places = steps.repeat_interleave(self.beam, 1)[:, None, None]
        return places.expand(-1, self.batch, -1, -1).flatten(0, 1)

    def follow(self, parents: Tensor) -> None:
        """Let hypothesis `parents[s, i]` of sentence s go on as its hypothesis i."""
        if self.beam > 1:
            index = parents[:, :, None, None].expand_as(self._visible)
            self._visible = self._visible.gather(1, index)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Keep only these sentences."""
        self.batch = len(sentences)
        self._source = self._source[:, :, sentences]
        if self._mask is not None:
            self._mask = self._mask[sentences]
        self._cut_source()
        self._visible = self._visible[sentences]
        used = self.steps * self.beam  # copy only what has been written
        kept = self._own.new_empty(2, sum(self._heads), self.batch, *self._own.shape[3:])
        kept[:, :, :, :used] = self._own[:, :, sentences, :used]
        self._own = kept

    def _cut_source(self) -> None:
        self.source_keys, self.source_values = self._by_layer(self._source, self._source_heads)
        if self._mask is not None:
            self.source_visible = self._for_heads(self._mask, self._source_heads)

    def _for_heads(self, mask: Tensor, heads: list[int]) -> list[Tensor]:
        """`[batch, ...]` to `[its heads * batch, ...]` for each layer, all in one copy."""
        copies = mask.expand(max(heads), *mask.shape).flatten(0, 1)
        views = {count: copies[: count * self.batch] for count in set(heads)}
        return [views[count] for count in heads]

    def _by_layer(
        self, pair: Tensor, heads: list[int]
    ) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """`[2, heads, batch, places, head]` to each layer's keys, transposed, and values."""
        keys, values = pair.flatten(1, 2).unbind(0)
        rows = [count * self.batch for count in heads]
        return keys.transpose(1, 2).split_with_sizes(rows), values.split_with_sizes(rows)


def layer_step(layer: DecoderLayer, index: int) -> Step:
    """The step of a whole layer, whose keys and values are number `index` in the cache."""
    own = _around(layer.self_attention, _self_attention(layer.self_attention.attention, index))
    cross = _around(layer.cross_attention, _cross_attention(layer.cross_attention.attention, index))
    network = _around(layer.feed_forward, _network(layer.feed_forward))
    steps = [*own, *cross, *network]

    def step(x: Tensor, cache: DecoderCache) -> Tensor:
        for each in steps:
            x = each(x, cache)
        return x

    return step


def _around(block: Block, function: Step) -> list[Step]:
    """`Block.around`: one step, or none where a removed block leaves nothing to do."""
    if block.removed and block.pre_norm:
        return []
    assert not isinstance(block.norm, nn.Identity)
    norm = norm_function(block.norm)
    if block.removed:
        return [lambda x, cache: norm(x)]
    gate = block.block_gate
    if gate is not None:
        ungated, column = function, gate.view(-1, 1)  # [1 or batch, 1]
        function = lambda x, cache: ungated(x, cache) * _rows(column, cache).to(x.dtype)  # noqa: E731
    if block.pre_norm:
        return [lambda x, cache: x + function(norm(x), cache)]
    return [lambda x, cache: norm(x + function(x, cache))]


def _rows(gates: Tensor, cache: DecoderCache) -> Tensor:
    """Gates of each sentence, or of all of them, for each row: `[1 or batch * beam, ...]`."""
    return gates if len(gates) == 1 else gates.repeat_interleave(cache.beam, 0)


def _self_attention(attention: Attention, index: int) -> Step:
    """Write the keys and values of the newest position, then attend to the prefix."""
    if not attention.heads:
        return _constant(attention.out_bias)
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
        return _constant(attention.out_bias)
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


def _constant(bias: Tensor) -> Step:
    """A block without heads or units computes nothing: its output is the constant bias."""
    return lambda x, cache: bias


def _network(block: FeedForwardBlock) -> Step:
    if not block.blocks:
        return _constant(block.contract.bias)
    expand, expand_bias = block.expand.weight.t(), block.expand.bias
    contract, contract_bias = block.contract.weight.t(), block.contract.bias
    activation, factor = block.activation, block.multiply
    gates = block.unit_gates()

    def step(x: Tensor, cache: DecoderCache) -> Tensor:
        hidden = activation(torch.addmm(expand_bias, x, expand))  # [batch * beam, ff]
        if factor is not None:
            hidden = hidden * torch.addmm(factor.bias, x, factor.weight.t())
        if gates is not None:
            hidden = hidden * _rows(gates[:, 0], cache).to(hidden.dtype)
        return torch.addmm(contract_bias, hidden, contract)

    return step
