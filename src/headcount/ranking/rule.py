"""What a rule of layer-wise relevance propagation is, for each kind of map (App. A.2).

A neuron is a sum of contributions. A rule says which fraction of the neuron's relevance each of
them gets (`Rule.fractions`); linear maps, layer norm, residual sums and attention's value path have
the same rule in a form that is a few matrix products for a whole batch and all its starts.

What travels down is a message `[batch, length, starts, width]`, one for each generation step that
relevance starts from; activations are `[batch, length, width]`. For most rules a message is the
relevance itself. `Telescoped` sends relevance divided by activation, which is a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from headcount.ranking.options import LrpOptions


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
the rule knows it without looking: see `Rule.loses_nothing`). A flow may overwrite the message that
it is given, as nobody needs it any more: fewer new tensors, less to fetch from memory.
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
    """`y = W x + b` with what the rules need of it, computed once for a model."""

    weight: Tensor  # [out, in]
    bias: Tensor  # [out]

    @cached_property
    def positive(self) -> Tensor:
        """The positive entries of W, zero elsewhere."""
        return self.weight.clamp(min=0)

    @cached_property
    def negative(self) -> Tensor:
        """The negative entries of W, zero elsewhere."""
        return self.weight.clamp(max=0)

    @cached_property
    def magnitude(self) -> Tensor:
        """|W|."""
        return self.weight.abs()


class Rule(ABC):
    """How relevance is shared among the contributions that a neuron is the sum of.

    `loses_nothing`: whatever does not arrive was taken by biases, so that it need not be counted.
    """

    loses_nothing = False

    def __init__(self, options: LrpOptions) -> None:
        self.epsilon = options.epsilon
        self.bias_shares = options.bias == "share"

    @abstractmethod
    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        """The fraction of their sum's relevance that each contribution along `dim` gets.

        An element-wise product shares in the same way among its factors (App. A.2).
        """

    @abstractmethod
    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        """`y = W x + b`, `[batch, length, out]` from `[batch, length, in]`."""

    @abstractmethod
    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        """Layer norm `y` of `x` with its scale held fixed: `y = g (x - mean x) / scale + b`."""

    @abstractmethod
    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        """Attention's `outputs = weights @ values`, the weights held constant."""

    def start(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Relevance 1 at a logit `row . state + bias` to messages at the state.

        `states` and `rows` `[batch, length, width]`, `bias` `[batch, length]`. Also gives what the
        bias takes, `[batch, length]`.
        """
        if self.bias_shares:
            return self.fractions(rows * states, -1), torch.zeros_like(bias)
        fractions = self.fractions(torch.cat([rows * states, bias[..., None]], -1), -1)
        return fractions[..., :-1], fractions[..., -1]

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        """A residual sum `x + f`: both sides share in proportion."""
        to_x, to_f = self.fractions(torch.stack([x, f]), 0).unbind(0)
        return lambda message, at: (message * at(to_x), message.mul_(at(to_f)))

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        """A gate is a constant weight: what arrives after it arrives before it."""
        return message

    def activation(self, before: Tensor, after: Tensor) -> Flow:
        """Activation functions are ignored, as in the appendix: relevance passes through."""
        return identity

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        """The relevance of the neurons that a message is at."""
        return message


def inverse_scale(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """1 / scale of a layer norm at each position, `[batch, length, 1]`."""
    inverse: Tensor = torch.native_layer_norm(x, norm.normalized_shape, None, None, norm.eps)[2]
    return inverse


def to_keys(message: Tensor, weights: Tensor, at: Window, keys: int) -> Tensor:
    """`weights^T @ message` for each head: from queries to the first `keys` keys.

    `[rows, heads, queries, starts, head]` to `[rows, heads, keys, starts, head]`: one product a
    head, all starts side by side.
    """
    seen = weights[: at.rows, :, at.first : at.last, :keys]
    shared: Tensor = seen.transpose(-1, -2) @ message.flatten(3)
    return shared.view(*shared.shape[:3], *message.shape[3:])
