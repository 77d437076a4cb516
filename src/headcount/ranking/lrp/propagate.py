"""Relevance from the top-1 logit of every generation step down to every head and token (App. A).

    propagation = Propagation(model, LrpOptions())
    recording = propagation.record(source, prefix)           # one forward pass
    result = propagation.propagate(recording, steps, tokens=True)
    result.heads["enc", 0]                                   # [batch, steps, heads]
    result.tokens.source, result.tokens.prefix               # [batch, steps, source or prefix]
    result.audit                                             # where the rest went

One forward pass of a batch is recorded; then the relevance of many generation steps of many
sentences goes down together, as messages `[batch, length, starts, width]` in batched matrix
products. A start at step t concerns no later position, so starts go in chunks of neighbouring
steps that are cut off behind their last one; and until the first self-attention below it, it
concerns position t alone, so the top layer's messages are kept as one position per start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from headcount.model.attention import Attention
from headcount.model.layers import FeedForwardBlock
from headcount.model.recording import Recording, record
from headcount.model.transformer import Transformer
from headcount.ranking.lrp.audit import Audit, stations
from headcount.ranking.lrp.descent import Descent, Propagated, TokenRelevance
from headcount.ranking.lrp.fast import maps_of
from headcount.ranking.lrp.maps import LinearMap, RecordedMaps, Window
from headcount.ranking.lrp.rules import RULES, LrpOptions

KINDS = frozenset(
    {"residual", "input", "memory", "queries", "keys", "values", "weights", "outputs"}
    | {"hidden_in", "hidden", "output", "ungated", "sum", "result", "activated", "factor"}
)
"""What must be recorded of a forward pass."""
CPU_MEMORY, MEMORY = 3_000_000, 256_000_000
"""Bytes per message. On a CPU larger ones do not fit the cache and make less use of causality."""
REACHING = 0.6
"""A chunk ends when fewer than this share of its sentences continue, so that little is wasted."""
LOGITS = 8_000_000
"""Logits computed at a time when looking for the largest ones."""


class Propagation:
    """LRP of one model: what is computed once for all batches."""

    def __init__(
        self,
        model: Transformer,
        options: LrpOptions,
        memory: int | None = None,
        source: bool = True,
        places: Iterable[tuple[str, int]] = (),
    ) -> None:
        """`source` false: stop at the encoder's output, where its heads are not wanted.

        `memory` is how many bytes a message may take. The relevance of all heads is kept, and that
        of units and blocks at these `places`, `(site, layer)`.
        """
        self.model, self.options = model, options
        self.places = list(dict.fromkeys([*model.attentions(), *places]))
        self.memory = memory or _default_memory(model, options)
        self.source = source
        self.maps = maps_of(RULES.find(options.rule)(options.epsilon), options)
        self.linear_maps: dict[tuple[str, int, str], LinearMap] = {}
        for (site, layer), attention in model.attentions().items():
            self._add_attention(site, layer, attention)
        for network in model.feed_forwards().values():
            self._add_feed_forward(network)
        if model.output_network is not None:
            linear = model.output_network.linear
            self.linear_maps["out", 0, "network"] = LinearMap(
                linear.weight.detach(), linear.bias.detach()
            )

    def _add_attention(self, site: str, layer: int, attention: Attention) -> None:
        names = ("queries", "keys", "values")
        weights, biases = attention.in_weight.detach(), attention.in_bias.detach()
        for name, weight, bias in zip(names, weights.chunk(3), biases.chunk(3), strict=True):
            self.linear_maps[site, layer, name] = LinearMap(weight, bias)
        self.linear_maps[site, layer, "out"] = LinearMap(
            attention.out_weight.detach(), attention.out_bias.detach()
        )

    def _add_feed_forward(self, block: FeedForwardBlock) -> None:
        maps = {"expand": block.expand, "contract": block.contract}
        if block.multiply is not None:
            maps["multiply"] = block.multiply
        for name, linear in maps.items():
            self.linear_maps[block.part, block.layer, name] = LinearMap(
                linear.weight.detach(), linear.bias.detach()
            )

    @torch.no_grad()
    def record(self, source: Tensor, prefix: Tensor) -> Recording:
        """One forward pass: tokens `[batch, source]` and decoder inputs `[batch, steps]`."""
        with record(self.model, KINDS) as recording:
            memory, mask = self.model.encode(source)
            self.model.decode(prefix, memory, mask)
        return recording

    @torch.no_grad()
    def propagate(
        self,
        recording: Recording,
        steps: Sequence[int],
        first: int = 0,
        tokens: bool = False,
        positions: Tensor | None = None,
    ) -> Propagated:
        """Relevance of all heads for the first `steps[i]` positions of each sentence i.

        Sentences must be in the order of falling numbers of steps. Relevance starts from the steps
        from `first` on. With `tokens` also the relevance of source and prefix tokens is kept. An
        encoder alone has no steps: relevance starts from these `positions` of its source instead,
        `[batch, steps]`, the first `steps[i]` of each row.
        """
        if list(steps) != sorted(steps, reverse=True) or min(steps) < 1:
            raise ValueError("sentences are not in the order of falling numbers of steps")
        if tokens and not self.source:
            raise ValueError("relevance of tokens must go through the encoder")
        recorded = RecordedMaps(self.model, self.maps, self.options, self.linear_maps, recording)
        audit = Audit(stations(self.model, self.source), self.maps.loses_nothing)
        audit.steps = sum(max(0, count - first) for count in steps)
        starts = self._starts(recording, steps, first, audit, positions)
        layers = self.model.heads.layers
        signed = {
            (site, layer): starts.new_zeros(len(steps), max(steps), len(layers[site][layer]))
            for site, layer in self.places
        }
        heads = signed
        if self.options.normalise == "neurons":
            heads = {place: torch.zeros_like(relevance) for place, relevance in signed.items()}
        result = Propagated(heads, signed, audit)
        source = recording["enc_out", 0, "result"].shape[1]
        if tokens:
            prefix = 0 if positions is not None else recording["dec_in", 0, "result"].shape[1]
            lengths = (source, prefix)
            result.tokens = TokenRelevance(
                *(starts.new_zeros(len(steps), max(steps), length) for length in lengths)
            )
        widest = max(max(map_.weight.shape) for map_ in self.linear_maps.values())
        position_size = widest * starts.element_size()
        for window in plan_starts(steps, position_size, source, self.memory, first):
            descent = Descent(recorded, window, self.options, result)
            if positions is None:
                descent.run(starts, self.source)
            else:
                descent.run_alone(starts, positions)
        return result

    def _starts(
        self,
        recording: Recording,
        steps: Sequence[int],
        first: int,
        audit: Audit,
        positions: Tensor | None,
    ) -> Tensor:
        """Messages at what the output layer reads, from the top-1 logit of every step.

        `[batch, steps, width]`. Only the row of the output matrix that belongs to the top-1 token
        takes part.
        """
        if positions is None:
            states = recording["dec_out", 0, "result"]
        else:
            states = recording["out", 0, "result"]
            states = states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))
        counts = torch.tensor(list(steps), device=states.device)[:, None]
        positions = torch.arange(states.shape[1], device=states.device)
        real = (positions < counts) & (positions >= first)  # [batch, steps]
        tokens = torch.zeros_like(real, dtype=torch.long)
        tokens[real] = top_tokens(self.model, states[real])
        rows = self.model.output_weight[tokens]
        bias = self.model.output_bias
        biases = rows.new_zeros(tokens.shape) if bias is None else bias[tokens]
        starts, taken = self.maps.start(states, rows, biases)
        audit.arrive("logit", real.to(starts))
        audit.add("bias", "logit", (taken * real).sum())
        return starts * real[..., None]


def _default_memory(model: Transformer, options: LrpOptions) -> int:
    if model.output_weight.device.type != "cpu":
        return MEMORY
    # Through the softmax every chunk has a fixed cost, so fewer chunks are faster.
    return CPU_MEMORY if options.attention == "constant" else 10 * CPU_MEMORY


def top_tokens(model: Transformer, states: Tensor) -> Tensor:
    """The most probable token of each state: `[..., width]` to `[...]`, a slice at a time."""
    flat = states.flatten(0, -2)
    rows = max(1, LOGITS // len(model.output_weight))
    tops = [model.logits(part).argmax(-1) for part in flat.split(rows)]
    return torch.cat(tops).view(states.shape[:-1])


def plan_starts(
    steps: Sequence[int], position_size: int, source: int, memory: int, first: int = 0
) -> list[Window]:
    """Chunks of starts: for each the sentences that reach it and its steps `[first, last)`.

    `steps` falls; `position_size` are the bytes of one position of one start.
    """
    windows = []
    while first < steps[0]:
        rows = sum(1 for count in steps if count > first)
        last = first + 1
        while (
            sum(1 for count in steps if count > last) >= max(1, REACHING * rows)
            and rows * max(source, last + 1) * (last + 1 - first) * position_size <= memory
        ):
            last += 1
        windows.append(Window(rows, first, last))
        first = last
    return windows
