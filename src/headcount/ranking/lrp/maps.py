"""What a rule means for each kind of map, from its fractions alone; and the maps of a batch.

What travels down is a message `[batch, length, starts, width]`, one for each generation step that
relevance starts from; activations are `[batch, length, width]`. Here a message is the relevance
itself. `fast.Telescoped` sends relevance divided by activation, which is a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from headcount.heads import UNIT_SITES
from headcount.model.layers import Block
from headcount.model.primitives import Norm
from headcount.model.recording import Recording
from headcount.model.transformer import Transformer
from headcount.ranking.lrp.rules import LrpOptions, Rule

CONTRIBUTIONS = 10_000_000
"""Contributions to the neurons of a linear map that are written out at a time."""


@dataclass(frozen=True)
class Window:
    """The part of a batch that a message is about: its first `rows`, positions `[first, last)`."""

    rows: int
    first: int
    last: int

    def __call__(self, x: Tensor) -> Tensor:
        """Activations `[batch, length, width]` to `[rows, last - first, 1, width]`."""
        return x[: self.rows, self.first : self.last].unsqueeze(2)

    def heads(self, x: Tensor) -> Tensor:
        """`[batch, heads, length, head]` to `[rows, heads, last - first, 1, head]`."""
        return x[: self.rows, :, self.first : self.last].unsqueeze(3)


Flow = Callable[[Tensor, Window], tuple[Tensor, Tensor | None]]
"""A message at the outputs of a map to the message at its inputs, and what its bias takes of it.

The latter is relevance summed over everything, a scalar, or None where it takes nothing (or where
that is known without counting: see `Maps.loses_nothing`). A flow may overwrite its input, which
nothing else needs: that allocates fewer tensors and saves memory traffic.
"""

SumFlow = Callable[[Tensor, Window], tuple[Tensor, Tensor]]
"""A message at a sum to messages at its two sides."""

HeadFlow = Callable[[Tensor, Window, int], Tensor]
"""Messages at head outputs `[rows, heads, queries, starts, head]` to those at the first values."""


def identity(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
    """The flow of a map that passes relevance through."""
    return message, None


@dataclass(frozen=True)
class LinearMap:
    """`y = W x + b` with what fast forms need, computed once per model."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]

    @cached_property
    def positive(self) -> Tensor:
        """The positive entries of W, zero elsewhere."""
        return self.weight.clamp(min=0)

    @cached_property
    def magnitude(self) -> Tensor:
        """|W|."""
        return self.weight.abs()


class Maps:
    """A rule at every kind of map: slow and obvious, by writing out all contributions.

    `loses_nothing`: what does not arrive was taken by biases, so that it need not be counted.
    """

    loses_nothing = False

    def __init__(self, rule: Rule, options: LrpOptions) -> None:
        self.rule = rule
        self.bias_shares = options.bias == "share"

    def start(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Relevance 1 at a logit `row . state + bias` to messages at the state.

        `states` and `rows` `[batch, length, width]`, `bias` `[batch, length]`. Also gives what the
        bias takes, `[batch, length]`.
        """
        if self.bias_shares:
            return self.rule.fractions(rows * states, -1), torch.zeros_like(bias)
        fractions = self.rule.fractions(torch.cat([rows * states, bias[..., None]], -1), -1)
        return fractions[..., :-1], fractions[..., -1]

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        """`y = W x + b`, `[batch, length, out]` from `[batch, length, in]`.

        Contribution i to neuron j is `W[j, i] x[i]`; the bias is one more unless it shares.
        """
        width = map_.weight.shape[1]
        weight = map_.weight if self.bias_shares else torch.column_stack([map_.weight, map_.bias])
        x = x if self.bias_shares else torch.cat([x, torch.ones_like(x[..., :1])], -1)
        positions = max(1, CONTRIBUTIONS // max(1, weight.numel()))

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            below, above = (t.flatten(0, 1).split(positions) for t in (at(x), message))
            # Products of [positions, starts, out] with [positions, out, in].
            parts = [
                relevance @ self.rule.fractions(weight * inputs, -1)
                for inputs, relevance in zip(below, above, strict=True)
            ]
            shared = torch.cat(parts).view(*message.shape[:-1], -1)
            taken = None if self.bias_shares else shared[..., width:].sum()
            return shared[..., :width], taken

        return down

    def norm(self, x: Tensor, y: Tensor, norm: Norm) -> Flow:
        """Layer norm `y = g (x - mean x) / scale + b`, its scale held fixed: a linear map.

        RMS norm neither subtracts the mean nor adds a bias.
        """
        width = x.shape[-1]
        centred = torch.eye(width).to(x) - (1 / width if centres(norm) else 0.0)
        map_ = LinearMap(norm.weight[:, None] * centred, bias_of(norm))
        return self.linear(x * inverse_scale(x, norm), y, map_)

    def product(self, a: Tensor, b: Tensor) -> SumFlow:
        """An element-wise product `a b`: its factors share as if they were summed (App. A.2)."""
        to_a, to_b = self.rule.fractions(torch.stack([a, b]), 0).unbind(0)
        return lambda message, at: (message * at(to_a), message.mul_(at(to_b)))

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        """A residual sum `x + f`: two contributions to each neuron."""
        to_x, to_f = self.rule.fractions(torch.stack([x, f]), 0).unbind(0)
        return lambda message, at: (message * at(to_x), message.mul_(at(to_f)))

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        """Attention's `outputs = weights @ values`, the weights held constant.

        Key k contributes `weights[q, k] values[k]` to query q.
        """

        def down(message: Tensor, at: Window, keys: int) -> Tensor:
            seen = weights[: at.rows, :, at.first : at.last, :keys, None]
            contributions = seen * values[: at.rows, :, None, :keys]  # [rows, heads, q, k, head]
            fractions = self.rule.fractions(contributions, 3)
            return torch.einsum("bhqkd,bhqsd->bhksd", fractions, message)

        return down

    def softmax(
        self,
        message: Tensor,
        weights: Tensor,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attention whose weights are not held constant (App. A.2): to queries, keys and values.

        A head's output is a sum over keys of products `weight * value`, a score a sum over neurons
        of products `query * key`; the factors of a product share as if they were summed. The
        softmax is an activation function and is ignored: what arrives at a weight arrives at its
        score, and position biases of scores get nothing. `message` `[rows, heads, queries, starts,
        head]`, `weights` `[rows, heads, queries, keys]`, the others `[rows, heads, length, head]`.
        """
        fractions = self.rule.fractions
        weight, value = torch.broadcast_tensors(weights[..., None], values[:, :, None])
        # [rows, heads, queries, keys, head] from here on; q, k and s are queries, keys and starts.
        of_output = fractions(weight * value, 3)
        to_weight, to_value = fractions(torch.stack([weight, value]), 0).unbind(0)
        at_values = torch.einsum("bhqkd,bhqsd->bhksd", of_output * to_value, message)
        at_scores = torch.einsum("bhqkd,bhqsd->bhqks", of_output * to_weight, message)
        query, key = torch.broadcast_tensors(queries[:, :, :, None], keys[:, :, None])
        of_score = fractions(query * key * scale, 4)
        to_query, to_key = fractions(torch.stack([query, key]), 0).unbind(0)
        at_queries = torch.einsum("bhqkd,bhqks->bhqsd", of_score * to_query, at_scores)
        at_keys = torch.einsum("bhqkd,bhqks->bhksd", of_score * to_key, at_scores)
        return at_queries, at_keys, at_values

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        """A gate is a constant weight: what arrives after it arrives before it."""
        return message

    def activation(self, before: Tensor, after: Tensor) -> Flow:
        """Activation functions are ignored, as in the appendix: relevance passes through."""
        return identity

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        """The relevance of the neurons that a message is at."""
        return message


def centres(norm: Norm) -> bool:
    """Whether a norm subtracts the mean."""
    return isinstance(norm, nn.LayerNorm)


def bias_of(norm: Norm) -> Tensor:
    """The bias of a norm, `[width]`; zeros where it has none."""
    return norm.bias if isinstance(norm, nn.LayerNorm) else torch.zeros_like(norm.weight)


def inverse_scale(x: Tensor, norm: Norm) -> Tensor:
    """1 / scale of a norm at each position, `[batch, length, 1]`."""
    if isinstance(norm, nn.RMSNorm):
        return (x.square().mean(-1, keepdim=True) + (norm.eps or 0.0)).rsqrt()
    inverse: Tensor = torch.native_layer_norm(x, norm.normalized_shape, None, None, norm.eps)[2]
    return inverse


T = TypeVar("T")

# Map -> where a recording has its input and its output.
ENDS = {
    "queries": ("input", "queries"),
    "keys": ("input", "keys"),
    "values": ("input", "values"),
    "out": ("gated", "output"),
    "expand": ("input", "hidden_in"),
    "multiply": ("input", "factor"),
    "contract": ("gated", "output"),
    "network": ("input", "hidden_in"),
}


class RecordedMaps:
    """The maps of one model on one recorded batch, by `(part, layer)`.

    What a rule needs of the activations is computed at the first use and kept for all later starts
    of the batch.
    """

    def __init__(
        self,
        model: Transformer,
        maps: Maps,
        options: LrpOptions,
        linear_maps: Mapping[tuple[str, int, str], LinearMap],
        recording: Recording,
    ) -> None:
        self.model, self.maps, self.recording = model, maps, recording
        self.linear_maps = linear_maps
        self.identity_norm = options.layer_norm == "identity"
        self.pre_norm = model.config.norm == "pre"
        self.attentions, self.networks = model.attentions(), model.feed_forwards()
        self.blocks = {(b.part, b.layer): b for b in model.modules() if isinstance(b, Block)}
        self.norms: dict[tuple[str, int], nn.Module] = {p: b.norm for p, b in self.blocks.items()}
        self.norms["enc_out", 0], self.norms["dec_out", 0] = model.encoder_norm, model.decoder_norm
        if model.output_network is not None:
            self.norms["out", 0] = model.output_network.norm
        self._flows: dict[tuple[str, int, str], Any] = {}

    def norm(self, part: str, layer: int) -> Flow:
        """The layer norm of a block, or the one at the end of a pre-norm stack."""
        norm = self.norms[part, layer]
        if self.identity_norm or not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            return identity
        if part in ("enc_out", "dec_out"):
            ends = "residual", "result"
        elif part == "out":
            ends = "hidden", "result"
        else:
            ends = ("residual", "input") if self.pre_norm else ("sum", "result")
        x, y = (self.recording[part, layer, kind] for kind in ends)
        return self._once((part, layer, "norm"), lambda: self.maps.norm(x, y, norm))

    def add(self, part: str, layer: int) -> SumFlow:
        """The residual sum of a block."""
        x, f = (self.recording[part, layer, kind] for kind in ("residual", "output"))
        return self._once((part, layer, "add"), lambda: self.maps.add(x, f))

    def linear(self, part: str, layer: int, name: str) -> Flow:
        """One matrix product of a block; see `ENDS`."""
        above, below = ENDS[name][1], ENDS[name][0]
        if part == "cross" and name in ("keys", "values"):
            below = "memory"

        def make() -> Flow:
            x, y = (self._end(part, layer, kind) for kind in (below, above))
            return self.maps.linear(x, y, self.linear_maps[part, layer, name])

        return self._once((part, layer, name), make)

    def activation(self, part: str, layer: int) -> Flow:
        """The activation function of a feed-forward block."""
        result = "activated" if self.model.config.gated else "hidden"
        before, after = (self.recording[part, layer, kind] for kind in ("hidden_in", result))
        return self._once((part, layer, "activation"), lambda: self.maps.activation(before, after))

    def product(self, part: str, layer: int) -> SumFlow:
        """The product of a gated feed-forward block: activated neurons, and their factors."""
        a, b = (self.recording[part, layer, kind] for kind in ("activated", "factor"))
        return self._once((part, layer, "product"), lambda: self.maps.product(a, b))

    def heads(self, site: str, layer: int) -> HeadFlow:
        """Head outputs from the values, attention weights held constant."""
        weights, values, outputs = (
            self.recording[site, layer, kind] for kind in ("weights", "values", "outputs")
        )
        return self._once(
            (site, layer, "attend"), lambda: self.maps.values(weights, values, outputs)
        )

    def gated(self, site: str, layer: int) -> Tensor:
        """Outputs of heads after their gates, side by side: `[batch, length, heads * head]`.

        Of a feed-forward network its hidden units after theirs: `[batch, length, ff]`.
        """
        return self._once((site, layer, "gated"), lambda: self._gated(site, layer))

    def _gated(self, site: str, layer: int) -> Tensor:
        if not self.model.heads.layers[site][layer]:
            return self.recording[site, layer, "output"][..., :0]
        if site in UNIT_SITES:
            hidden, gates = self.recording[site, layer, "hidden"], self.unit_gates(site, layer)
            return hidden if gates is None else hidden * gates
        outputs, gate = self.recording[site, layer, "outputs"], self.gate(site, layer)
        return _side_by_side(outputs if gate is None else outputs * gate[..., None, None])

    def gate(self, site: str, layer: int) -> Tensor | None:
        """The gates on an attention, `[heads]` or `[batch, heads]`, where there are any."""
        gate = self.attentions[site, layer].gate
        return (
            None if gate is None else gate.detach().to(self.linear_maps[site, layer, "out"].weight)
        )

    def unit_gates(self, site: str, layer: int) -> Tensor | None:
        """The gates on the units of a network, `[1 or batch, 1, ff]`, where there are any."""
        gates = self.networks[site, layer].unit_gates()
        return (
            None if gates is None else gates.detach().to(self.networks[site, layer].expand.weight)
        )

    def block_gate(self, part: str, layer: int) -> Tensor | None:
        """The gate on a whole block, `[1 or batch]`, where there is one."""
        gate = self.blocks[part, layer].block_gate
        return None if gate is None else gate.detach().to(self.model.output_weight).view(-1)

    def _end(self, part: str, layer: int, kind: str) -> Tensor:
        """What is at one end of a map, `[batch, length, width]`."""
        if kind == "gated":
            return self.gated(part, layer)
        if kind == "output" and (part, layer, "ungated") in self.recording:
            kind = "ungated"
        tensor = self.recording[part, layer, kind]
        return _side_by_side(tensor) if tensor.dim() == 4 else tensor

    def _once(self, key: tuple[str, int, str], make: Callable[[], T]) -> T:
        if key not in self._flows:
            self._flows[key] = make()
        return cast(T, self._flows[key])


def _side_by_side(heads: Tensor) -> Tensor:
    """`[batch, heads, length, head]` to `[batch, length, heads * head]`."""
    return heads.transpose(1, 2).flatten(2)
