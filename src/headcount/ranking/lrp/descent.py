"""Propagating one chunk of starts down through the decoder and the encoder (App. A)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.heads import BLOCKS, stack_of
from headcount.ranking.lrp.audit import Audit
from headcount.ranking.lrp.maps import Flow, RecordedMaps, Window
from headcount.ranking.lrp.rules import LrpOptions


@dataclass(frozen=True)
class TokenRelevance:
    """The relevance that arrives at embedded tokens, summed over their neurons.

    `source` `[batch, steps, source]` and `prefix` `[batch, steps, prefix]`, zero at steps that a
    sentence does not have and at padding. At each step both together add up to 1 less what biases
    and epsilon took on the way. An embedding is that of a token together with its position.
    """

    source: Tensor
    prefix: Tensor


@dataclass
class Propagated:
    """The result for a batch: relevance of heads and tokens at each step, and where the rest went.

    `heads[site, layer]` is `[batch, steps, heads]`, zero at steps that a sentence does not have:
    summed over a head's neurons, by their absolute values where the options say `neurons`;
    `signed` is always the plain sum.
    """

    heads: dict[tuple[str, int], Tensor]
    signed: dict[tuple[str, int], Tensor]
    audit: Audit
    tokens: TokenRelevance | None = None


class Descent:
    """Messages of the starts `[first, last)` of the sentences that reach them.

    The message is first one position per start, `[rows, starts, 1, width]`: position `first + i`
    belongs to start i. Where it first spreads it becomes `[rows, last, starts, width]`.
    """

    def __init__(
        self,
        recorded: RecordedMaps,
        window: Window,
        options: LrpOptions,
        result: Propagated,
    ) -> None:
        self.recorded, self.maps, self.recording = recorded, recorded.maps, recorded.recording
        self.window, self.at, self.spread = window, window, False
        self.everywhere = Window(window.rows, 0, window.last)
        self.source = Window(window.rows, 0, self.recording["enc_out", 0, "result"].shape[1])
        self.by_softmax = options.attention == "softmax"
        self.result, self.audit, self.tokens = result, result.audit, result.tokens
        self.memory: Tensor | None = None
        self.station = "logit"

    def run(self, starts: Tensor, source: bool) -> None:
        """Go down from messages `[batch, steps, width]` at the decoder's output.

        Not through the encoder where `source` is false.
        """
        message = self.window(starts).clone()  # [rows, starts, 1, width]
        config = self.recorded.model.config
        message = self._arrive("dec_out", "dec_out", 0, message)
        message = self._through(self.recorded.norm("dec_out", 0), message)
        for layer in reversed(range(config.decoder_layers)):
            message = self._arrive(f"dec.{layer}", "dec_ff", layer, message)
            message = self._feed_forward("dec_ff", layer, message)
            message = self._block("cross", layer, message, self._cross_attention)
            message = self._block("dec", layer, message, self._self_attention)
        self._arrive("dec_in", "dec_in", 0, message)
        if self.memory is not None:
            self.at, self.spread = self.source, True
            self._arrive("enc_out", "enc_out", 0, self.memory)
            if source:
                self._encoder(self.memory)

    def run_alone(self, starts: Tensor, positions: Tensor) -> None:
        """Go down from messages `[batch, starts, width]` at the output of an encoder alone.

        Start i of a sentence is at its position `positions[i]`, `[batch, starts]`.
        """
        window, width = self.window, starts.shape[-1]
        length = self.recording["out", 0, "result"].shape[1]  # 1 where sentences are classified
        mine = (slice(window.rows), slice(window.first, window.last))
        index = positions[mine][:, None, :, None].expand(-1, 1, -1, width)
        message = starts.new_zeros(window.rows, length, window.last - window.first, width)
        message.scatter_(1, index, starts[mine][:, None])
        self.at, self.spread = Window(window.rows, 0, length), True
        message = self._arrive("out", "out", 0, message)
        message = self._through(self.recorded.norm("out", 0), message)
        message = self._through(self.recorded.activation("out", 0), message)
        message = self._through(self.recorded.linear("out", 0, "network"), message)
        elsewhere = self.source.last - length
        message = torch.nn.functional.pad(message, (0, 0, 0, 0, 0, elsewhere))
        self.at = self.source
        self._encoder(self._arrive("enc_out", "enc_out", 0, message))

    def _encoder(self, message: Tensor) -> None:
        message = self._through(self.recorded.norm("enc_out", 0), message)
        for layer in reversed(range(self.recorded.model.config.encoder_layers)):
            message = self._arrive(f"enc.{layer}", "enc_ff", layer, message)
            message = self._feed_forward("enc_ff", layer, message)
            message = self._block("enc", layer, message, self._self_attention)
        self._arrive("enc_in", "enc_in", 0, message)

    def _block(
        self,
        part: str,
        layer: int,
        message: Tensor,
        function: Callable[[str, int, Tensor], Tensor | None],
    ) -> Tensor:
        """A residual block: relevance through its function and past it, added up."""
        norm = self.recorded.norm(part, layer)
        if not self.recorded.pre_norm:
            message = self._through(norm, message)
        if self.recorded.blocks[part, layer].removed:
            return message
        past, entering = self.recorded.add(part, layer)(message, self.at)
        entering = self._whole_block(part, layer, entering)
        was_spread = self.spread
        inside = function(part, layer, entering)
        if inside is None:
            return past
        if self.recorded.pre_norm:
            inside = self._through(norm, inside)
        return inside.add_(past if self.spread == was_spread else self._spread(past, 1))

    def _whole_block(self, part: str, layer: int, entering: Tensor) -> Tensor:
        """Note the relevance of a block, that of its output, and go before its gate."""
        site = f"{stack_of(part)}_layers"
        if (site, layer) in self.result.heads:
            blocks = self.recorded.model.heads.layers[site][layer]
            column = blocks.index(BLOCKS[site].index(part))
            output = self.recording[part, layer, "output"]
            for kept, sums in self._sums(site, layer, entering, output):
                kept[..., column] = sums.sum(-1)
        gate = self.recorded.block_gate(part, layer)
        if gate is None:
            return entering
        return self.maps.gate(entering, gate[: self.window.rows, None, None, None])

    def _sums(
        self, site: str, layer: int, message: Tensor, activation: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Where the relevance of heads is kept, and that of neurons, summed over positions.

        `[rows, starts, heads]` of this window with `[rows, starts, width]`: first plain sums, then,
        if they are asked for, sums of absolute values.
        """
        relevance = self.maps.relevance(message, self.at(activation))
        window, result = self.window, self.result
        kinds = [(result.signed, relevance)]
        if result.heads is not result.signed:
            kinds.append((result.heads, relevance.abs()))
        for places, values in kinds:
            kept = places[site, layer][: window.rows, window.first : window.last]
            yield kept, values.sum(1) if self.spread else values[:, :, 0]

    def _units(self, part: str, layer: int, message: Tensor) -> Tensor:
        """Note the relevance of blocks of units; go before their gates."""
        if (part, layer) in self.result.heads:
            block = self.recorded.networks[part, layer].unit_block
            for kept, sums in self._sums(part, layer, message, self.recorded.gated(part, layer)):
                kept.zero_().index_add_(-1, block, sums)
        gates = self.recorded.unit_gates(part, layer)
        if gates is None:
            return message
        return self.maps.gate(message, gates[: self.window.rows, None])

    def _feed_forward(self, part: str, layer: int, message: Tensor) -> Tensor:
        """The position-wise network; relevance passes through its activation function."""

        def network(part: str, layer: int, entering: Tensor) -> Tensor | None:
            hidden = self._through(self.recorded.linear(part, layer, "contract"), entering)
            if not self.recorded.networks[part, layer].blocks:
                return None  # it is only its bias
            hidden = self._units(part, layer, hidden)
            factor: Tensor | None = None
            if self.recorded.model.config.gated:
                hidden, factor = self.recorded.product(part, layer)(hidden, self.at)
            hidden = self._through(self.recorded.activation(part, layer), hidden)
            inside = self._through(self.recorded.linear(part, layer, "expand"), hidden)
            if factor is not None:
                multiply = self.recorded.linear(part, layer, "multiply")
                inside = inside.add_(self._through(multiply, factor))
            return inside

        return self._block(part, layer, message, network)

    def _self_attention(self, site: str, layer: int, entering: Tensor) -> Tensor | None:
        """Down to the heads, then to the positions that they look at."""
        at_heads = self._heads(site, layer, entering)
        if at_heads is None:
            return None
        if not self.spread:
            at_heads = self._spread(at_heads, 2)
            self.at, self.spread = self.everywhere, True
        names = ("queries", "keys", "values")
        total: Tensor | None = None
        for name, message in zip(
            names, self._attend(site, layer, at_heads, self.at, self.at.last), strict=True
        ):
            if message is not None:
                part = self._through(self.recorded.linear(site, layer, name), _merge(message))
                total = part if total is None else total.add_(part)
        return total

    def _cross_attention(self, site: str, layer: int, entering: Tensor) -> Tensor | None:
        """Down to the heads, then to the source; queries get a share only through the softmax."""
        at_heads = self._heads(site, layer, entering)
        if at_heads is None:
            return None
        if not self.spread:
            at_heads = self._spread(at_heads, 2)
        below = self.source
        queries, *rest = self._attend(site, layer, at_heads, self.everywhere, below.last)
        for name, message in zip(("keys", "values"), rest, strict=True):
            if message is not None:
                flow = self.recorded.linear(site, layer, name)
                self._to_source(self._through(flow, _merge(message), below))
        if queries is None:
            return None
        self.at, self.spread = self.everywhere, True
        return self._through(self.recorded.linear(site, layer, "queries"), _merge(queries))

    def _to_source(self, message: Tensor) -> None:
        memory = self.source(self.recording["enc_out", 0, "result"])
        relevance = self.maps.relevance(message, memory)
        self.audit.add("to_source", self.station, relevance.sum())
        self.memory = message if self.memory is None else self.memory.add_(message)

    def _heads(self, site: str, layer: int, entering: Tensor) -> Tensor | None:
        """Messages at head outputs, before gates: `[rows, heads, length, starts, head]`.

        Their relevance is what heads are ranked by. An attention without heads is only its bias.
        """
        attention = self.recorded.attentions[site, layer]
        message = self._through(self.recorded.linear(site, layer, "out"), entering)
        if not attention.heads:
            return None
        shape = (len(attention.heads), attention.head_width)
        for kept, sums in self._sums(site, layer, message, self.recorded.gated(site, layer)):
            kept.copy_(sums.unflatten(-1, shape).sum(-1))
        message = message.unflatten(-1, shape).permute(0, 3, 1, 2, 4)
        gate = self.recorded.gate(site, layer)
        if gate is not None:
            gate = gate[: self.window.rows] if gate.dim() == 2 else gate
            message = self.maps.gate(message, gate[..., None, None, None])
        return message

    def _attend(
        self, site: str, layer: int, message: Tensor, at: Window, keys: int
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Messages at queries, keys and values from those at head outputs."""
        if not self.by_softmax:
            return None, None, self.recorded.heads(site, layer)(message, at, keys)
        names = ("weights", "queries", "keys", "values")
        weights, queries, others, values = (self.recording[site, layer, name] for name in names)
        return self.maps.softmax(
            message,
            weights[: at.rows, :, : at.last, :keys],
            queries[: at.rows, :, : at.last],
            others[: at.rows, :, :keys],
            values[: at.rows, :, :keys],
            self.recorded.attentions[site, layer].scale,
        )

    def _through(self, flow: Flow, message: Tensor, at: Window | None = None) -> Tensor:
        """Down through one map; the audit notes what its bias takes."""
        below, taken = flow(message, at or self.at)
        if taken is not None:
            self.audit.add("bias", self.station, taken)
        return below

    def _arrive(self, station: str, part: str, layer: int, message: Tensor) -> Tensor:
        """Note what arrives at a station; the message itself goes on."""
        activation = self.at(self.recording[part, layer, "result"])
        relevance = self.maps.relevance(message, activation)
        self.audit.arrive(station, relevance)
        if self.tokens is not None and station in ("dec_in", "enc_in"):
            place = self.tokens.prefix if station == "dec_in" else self.tokens.source
            self._keep_tokens(place, relevance.sum(-1))
        self.station = station
        return message

    def _keep_tokens(self, place: Tensor, relevance: Tensor) -> None:
        """Relevance `[rows, length, starts]`, or one position per start, by step and token."""
        window = self.window
        if not self.spread:
            relevance = self._spread(relevance[..., None], 1)[..., 0]
        kept = place[: window.rows, window.first : window.last, : relevance.shape[1]]
        kept.copy_(relevance.transpose(1, 2))

    def _spread(self, message: Tensor, dim: int) -> Tensor:
        """`[..., starts, 1, width]` to `[..., last, starts, width]` with start i at `first + i`.

        `dim` is where positions are; nothing arrives at the others.
        """
        window = self.window
        shape = list(message.shape)
        shape[dim : dim + 2] = [window.last, shape[dim]]
        result = message.new_zeros(shape)
        own = result.narrow(dim, window.first, window.last - window.first)
        own.diagonal(0, dim, dim + 1).copy_(message.select(dim + 1, 0).movedim(dim, -1))
        return result


def _merge(message: Tensor) -> Tensor:
    """`[rows, heads, length, starts, head]` to `[rows, length, starts, heads * head]`."""
    return message.permute(0, 2, 3, 1, 4).flatten(3)
