"""The blocks of the Transformer: residual blocks around attention and feed-forward (Sec. 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.heads import HeadLayout
from headcount.model.attention import Attention
from headcount.model.embedding import RelativePositions
from headcount.model.primitives import dropout, make_linear, make_norm
from headcount.model.recording import Tape

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "swish": F.silu,
    "tanh": torch.tanh,
}


class Gateable(Protocol):
    """What has a gate for each of its heads, units or blocks: see `model.gating`."""

    gate: Tensor | None


class Block(nn.Module):
    """A residual block: pre-norm `x + f(norm(x))` or post-norm `norm(x + f(x))`.

    A gate on the block multiplies `f`. A block that was removed is one whose gate is 0: nothing
    is left of it but `x`, in post-norm `norm(x)`.
    """

    def __init__(
        self, part: str, layer: int, config: ModelConfig, tape: Tape, removed: bool = False
    ) -> None:
        super().__init__()
        self.part, self.layer = part, layer
        self.pre_norm = config.norm == "pre"
        self.removed = removed
        self.dropout = config.dropout
        self.tape = tape
        self.block_gate: Tensor | None = None
        """One number, or one for each sentence, `[batch]`; set by the layer."""
        self.norm = nn.Identity() if self.removed and self.pre_norm else make_norm(config)

    def around(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `function` inside the residual block: `[batch, length, width]` to the same."""
        part, layer, at = self.part, self.layer, self.tape.at
        x = at(part, layer, "residual", x)
        if self.removed:
            total = at(part, layer, "sum", x)
        else:
            inside = at(part, layer, "input", self.norm(x) if self.pre_norm else x)
            output = function(inside)
            if self.training and self.dropout:
                output = dropout(output, self.dropout)
            if self.block_gate is not None:
                gate = self.block_gate.to(output.dtype).view(-1, 1, 1)
                output = at(part, layer, "ungated", output) * gate
            total = at(part, layer, "sum", x + at(part, layer, "output", output))
        return at(part, layer, "result", total if self.pre_norm else self.norm(total))


class AttentionBlock(Block):
    """Attention of one site with its residual connection and norm."""

    def __init__(
        self,
        site: str,
        layer: int,
        config: ModelConfig,
        heads: HeadLayout,
        tape: Tape,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__(site, layer, config, tape, not heads.has_block(site, layer))
        own = heads.layers[site][layer]
        self.attention = Attention(site, layer, config, own, tape, relative, self.removed)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """`[batch, length, width]` to the same; arguments as in `Attention.forward`."""
        if memory is not None:
            memory = self.tape.at(self.part, self.layer, "memory", memory)
        return self.around(x, lambda inside: self.attention(inside, memory, mask, causal))


class FeedForwardBlock(Block):
    """The two-layer network of each position with its residual connection and norm.

    Where it is gated (Shazeer 2020; T5 1.1), hidden neurons are multiplied by a second linear map
    of the input. The units in between come in blocks (`ModelConfig.ff_block`), of which a pruned
    network has only some, maybe none: then its output is the constant bias.
    """

    unit_block: Tensor

    def __init__(
        self, part: str, layer: int, config: ModelConfig, heads: HeadLayout, tape: Tape
    ) -> None:
        super().__init__(part, layer, config, tape, not heads.has_block(part, layer))
        biases = config.biases and not self.removed
        self.blocks = heads.layers[part][layer]
        sizes = [len(config.units_of(part, block)) for block in self.blocks]
        self.gate: Tensor | None = None
        blocks = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.long))
        self.register_buffer("unit_block", blocks, persistent=False)  # [ff]: each unit's block
        inner = sum(sizes)
        self.expand = make_linear(config.width, inner, biases)
        self.multiply = make_linear(config.width, inner, biases) if config.gated else None
        self.contract = make_linear(inner, config.width, biases)
        self.activation = ACTIVATIONS[config.activation]
        self.activation_dropout = config.activation_dropout
        for linear in (self.expand, self.contract, self.multiply):
            if linear is not None and inner:
                nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, length, width]` to the same."""
        return self.around(x, self._network)

    def _network(self, inside: Tensor) -> Tensor:
        if not self.blocks:
            return self.contract.bias.expand(inside.shape)
        at = self.tape.at
        hidden_in = at(self.part, self.layer, "hidden_in", self.expand(inside))
        hidden = self.activation(hidden_in)
        if self.multiply is not None:
            factor = at(self.part, self.layer, "factor", self.multiply(inside))
            hidden = at(self.part, self.layer, "activated", hidden) * factor
        if self.training and self.activation_dropout:
            hidden = dropout(hidden, self.activation_dropout)
        hidden = at(self.part, self.layer, "hidden", hidden)  # [batch, length, ff]
        gates = self.unit_gates()
        if gates is not None:
            hidden = hidden * gates.to(hidden.dtype)
        output: Tensor = self.contract(hidden)
        return output

    def unit_gates(self) -> Tensor | None:
        """The gate of every unit, `[1 or batch, 1, ff]`, where there are gates."""
        return (
            None
            if self.gate is None
            else self.gate[..., self.unit_block].view(-1, 1, len(self.unit_block))
        )


class Layer(nn.Module):
    """Residual blocks one after the other."""

    _gate: Tensor | None = None

    def blocks(self) -> list[Block]:
        """The blocks, in order, without those that were removed."""
        blocks = (block for block in self.children() if isinstance(block, Block))
        return [block for block in blocks if not block.removed]

    @property
    def gate(self) -> Tensor | None:
        """A gate for each block, `[blocks]` or `[batch, blocks]`, where there are gates."""
        return self._gate

    @gate.setter
    def gate(self, gate: Tensor | None) -> None:
        self._gate = gate
        for place, block in enumerate(self.blocks()):
            block.block_gate = None if gate is None else gate[..., place]


class EncoderLayer(Layer):
    """Self-attention, then feed-forward."""

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        heads: HeadLayout,
        tape: Tape,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = AttentionBlock("enc", layer, config, heads, tape, relative)
        self.feed_forward = FeedForwardBlock("enc_ff", layer, config, heads, tape)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`[batch, source, width]` to the same."""
        x = self.self_attention(x, mask=mask)
        output: Tensor = self.feed_forward(x)
        return output


class DecoderLayer(Layer):
    """Self-attention to earlier positions, attention to the source, then feed-forward."""

    def __init__(
        self,
        layer: int,
        config: ModelConfig,
        heads: HeadLayout,
        tape: Tape,
        relative: RelativePositions | None = None,
    ) -> None:
        super().__init__()
        self.self_attention = AttentionBlock("dec", layer, config, heads, tape, relative)
        self.cross_attention = AttentionBlock("cross", layer, config, heads, tape)
        self.feed_forward = FeedForwardBlock("dec_ff", layer, config, heads, tape)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """`x` `[batch, target, width]`, `memory` `[batch, source, width]` to `x`'s shape."""
        x = self.self_attention(x, causal=True)
        x = self.cross_attention(x, memory=memory, mask=mask)
        output: Tensor = self.feed_forward(x)
        return output
