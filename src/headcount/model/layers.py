"""The blocks of the Transformer: residual blocks around attention and feed-forward (Sec. 2)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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
}


class Block(nn.Module):
    """A residual block: pre-norm `x + f(norm(x))` or post-norm `norm(x + f(x))`."""

    def __init__(self, part: str, layer: int, config: ModelConfig, tape: Tape) -> None:
        super().__init__()
        self.part, self.layer = part, layer
        self.pre_norm = config.norm == "pre"
        self.dropout = config.dropout
        self.tape = tape
        self.norm = make_norm(config)

    def around(self, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `function` inside the residual block: `[batch, length, width]` to the same."""
        part, layer, at = self.part, self.layer, self.tape.at
        x = at(part, layer, "residual", x)
        inside = at(part, layer, "input", self.norm(x) if self.pre_norm else x)
        output = function(inside)
        if self.training and self.dropout:
            output = dropout(output, self.dropout)
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
        super().__init__(site, layer, config, tape)
        self.attention = Attention(site, layer, config, heads.layers[site][layer], tape, relative)

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
    of the input.
    """

    def __init__(self, part: str, layer: int, config: ModelConfig, tape: Tape) -> None:
        super().__init__(part, layer, config, tape)
        inner = config.ff_width_at(part)
        self.expand = make_linear(config.width, inner, config.biases)
        self.multiply = make_linear(config.width, inner, config.biases) if config.gated else None
        self.contract = make_linear(inner, config.width, config.biases)
        self.activation = ACTIVATIONS[config.activation]
        self.activation_dropout = config.activation_dropout
        for linear in (self.expand, self.contract, self.multiply):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """`[batch, length, width]` to the same."""
        return self.around(x, self._network)

    def _network(self, inside: Tensor) -> Tensor:
        at = self.tape.at
        hidden_in = at(self.part, self.layer, "hidden_in", self.expand(inside))
        hidden = self.activation(hidden_in)
        if self.multiply is not None:
            factor = at(self.part, self.layer, "factor", self.multiply(inside))
            hidden = at(self.part, self.layer, "activated", hidden) * factor
        if self.training and self.activation_dropout:
            hidden = dropout(hidden, self.activation_dropout)
        # [batch, length, ff]
        output: Tensor = self.contract(at(self.part, self.layer, "hidden", hidden))
        return output


class EncoderLayer(nn.Module):
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
        self.feed_forward = FeedForwardBlock("enc_ff", layer, config, tape)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """`[batch, source, width]` to the same."""
        x = self.self_attention(x, mask=mask)
        output: Tensor = self.feed_forward(x)
        return output


class DecoderLayer(nn.Module):
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
        self.feed_forward = FeedForwardBlock("dec_ff", layer, config, tape)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """`x` `[batch, target, width]`, `memory` `[batch, source, width]` to `x`'s shape."""
        x = self.self_attention(x, causal=True)
        x = self.cross_attention(x, memory=memory, mask=mask)
        output: Tensor = self.feed_forward(x)
        return output
