"""The rules of layer-wise relevance propagation, for each kind of map in a Transformer (App. A.2).

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


@dataclass(frozen=True)
class Flow:
    """How messages go down through one map, and the share of them that its bias takes.

    `bias`, `[batch, length, out]` or `[out]`, times the message is the relevance taken.
    """

    down: Callable[[Tensor, Window], Tensor]
    bias: Tensor | None = None

    def taken(self, message: Tensor, window: Window) -> Tensor:
        """The relevance that the bias takes, summed over neurons: a scalar."""
        if self.bias is None:
            return message.new_zeros(())
        bias = self.bias if self.bias.dim() == 1 else window(self.bias)
        return (message * bias).sum()


SumFlow = Callable[[Tensor, Window], tuple[Tensor, Tensor]]
"""A message at a sum to messages at its two sides."""

HeadFlow = Callable[[Tensor, Window, int], Tensor]
"""Messages at head outputs `[rows, heads, queries, starts, head]` to those at the first values."""


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
    """How relevance is shared among the contributions that a neuron is the sum of."""

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
        return lambda message, at: (message * at(to_x), message * at(to_f))

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        """A gate is a constant weight: what arrives after it arrives before it."""
        return message

    def activation(self, message: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Activation functions are ignored, as in the appendix: relevance passes through."""
        return message

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        """The relevance of the neurons that a message is at."""
        return message


class Ratio(Rule):
    """The appendix's weight ratio: a contribution divided by the sum, signs and all."""

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        return contributions * self.inverse(contributions.sum(dim, keepdim=True))

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        inverse, taken = self._denominator(y, map_.bias)
        return Flow(lambda m, at: (m * at(inverse)) @ map_.weight * at(x), taken)

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        inverse, taken = self._denominator(y, norm.bias)
        gain = norm.weight * inverse_scale(x, norm) * inverse

        def down(message: Tensor, at: Window) -> Tensor:
            scaled = message * at(gain)
            return (scaled - scaled.mean(-1, keepdim=True)) * at(x)

        return Flow(down, taken)

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        inverse = self.inverse(outputs)

        def down(message: Tensor, at: Window, keys: int) -> Tensor:
            shared = to_keys(message * at.heads(inverse), weights, at, keys)
            return shared * Window(at.rows, 0, keys).heads(values)

        return down

    def inverse(self, total: Tensor) -> Tensor:
        """1 / (total + epsilon away from zero); where both are zero nothing is passed on."""
        away = torch.where(total < 0, total - self.epsilon, total + self.epsilon)
        return torch.where(away == 0, 0.0, 1 / away)

    def _denominator(self, y: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """What to divide by, inverted, and the fraction that the bias takes."""
        if self.bias_shares:
            return self.inverse(y - bias), None
        inverse = self.inverse(y)
        return inverse, bias * inverse


class Telescoped(Rule):
    """`Ratio` where every denominator is the activation above it, so that they all cancel.

    A message is relevance / activation. It starts as d log(logit) and goes down as a gradient does
    when attention weights and the scales of layer norm are constants; epsilon has no part in it.
    """

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        raise NotImplementedError("messages of this rule are not relevance")

    def start(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        logits = (rows * states).sum(-1) + bias
        return rows / logits[..., None], bias / logits

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        return Flow(lambda m, at: m @ map_.weight, map_.bias)

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        gain = norm.weight * inverse_scale(x, norm)

        def down(message: Tensor, at: Window) -> Tensor:
            scaled = message * at(gain)
            return scaled.sub_(scaled.mean(-1, keepdim=True))

        return Flow(down, norm.bias)

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        return lambda message, at, keys: to_keys(message, weights, at, keys)

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        return lambda message, at: (message, message)

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        return message * gate

    def activation(self, message: Tensor, before: Tensor, after: Tensor) -> Tensor:
        return message * torch.where(before == 0, 0.0, after / before)

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        return message * activation


class AlphaBeta(Rule):
    """Positive contributions share the part alpha, negative ones beta, each in proportion.

    Bach et al. (2015), Eq. 60; alpha = beta = 0.5 in the authors' later code, and `zplus` is
    alpha = 1, beta = 0. Where a neuron has contributions of one sign only, they get all of it.
    """

    def __init__(self, options: LrpOptions, alpha: float, beta: float) -> None:
        super().__init__(options)
        self.alpha, self.beta = alpha, beta

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        up, down = contributions.clamp(min=0), contributions.clamp(max=0)
        by_up, by_down = self.inverses(up.sum(dim, keepdim=True), down.sum(dim, keepdim=True))
        return up * by_up + down * by_down

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        up, down = x.clamp(min=0), x.clamp(max=0)
        total_up = up @ map_.positive.T + down @ map_.negative.T
        total_down = up @ map_.negative.T + down @ map_.positive.T
        by_up, by_down, taken = self._denominators(total_up, total_down, map_.bias)
        if not bool(by_down.any()) and bool((x >= 0).all()):
            return Flow(lambda m, at: (m * at(by_up)) @ map_.positive * at(x), taken)
        # c+ = (c + |c|) / 2 and c- = (c - |c|) / 2: two products instead of four.
        plain, magnitude = (by_up + by_down) / 2, (by_up - by_down) / 2
        size = x.abs()

        def go_down(message: Tensor, at: Window) -> Tensor:
            result = ((message * at(plain)) @ map_.weight).mul_(at(x))
            return result.addcmul_((message * at(magnitude)) @ map_.magnitude, at(size))

        return Flow(go_down, taken)

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        width = x.shape[-1]
        slope = norm.weight * inverse_scale(x, norm)  # [batch, length, width]
        rising, falling = slope.clamp(min=0), slope.clamp(max=0).neg()
        up, down = x.clamp(min=0) / width, x.clamp(max=0).neg() / width
        # Neuron j sees x_j with weight slope_j (1 - 1/width), the others with -slope_j / width.
        own = slope * x * (1 - 1 / width)
        other_up, other_down = up.sum(-1, keepdim=True) - up, down.sum(-1, keepdim=True) - down
        total_up = own.clamp(min=0) + rising * other_down + falling * other_up
        total_down = own.clamp(max=0) - rising * other_up - falling * other_down
        by_up, by_down, taken = self._denominators(total_up, total_down, norm.bias)
        from_up = falling * by_up - rising * by_down  # what a positive x_i gets of each j, x n/x_i
        from_down = rising * by_up - falling * by_down
        itself = own.clamp(min=0) * by_up + own.clamp(max=0) * by_down
        itself = itself - up * from_up - down * from_down

        def go_down(message: Tensor, at: Window) -> Tensor:
            result = message * at(itself)
            result.addcmul_((message * at(from_up)).sum(-1, keepdim=True), at(up))
            return result.addcmul_((message * at(from_down)).sum(-1, keepdim=True), at(down))

        return Flow(go_down, taken)

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        up, down = values.clamp(min=0), values.clamp(max=0)
        by_up, by_down = self.inverses(weights @ up, weights @ down)

        def go_down(message: Tensor, at: Window, keys: int) -> Tensor:
            below = Window(at.rows, 0, keys)
            result = to_keys(message * at.heads(by_up), weights, at, keys) * below.heads(up)
            negative = to_keys(message * at.heads(by_down), weights, at, keys)
            return result.addcmul_(negative, below.heads(down))

        return go_down

    def inverses(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """alpha / sum of positive and beta / sum of negative contributions, where there are any."""
        has_up, has_down = up > 0, down < 0
        alpha = torch.where(has_down, self.alpha, 1.0) * has_up
        beta = torch.where(has_up, self.beta, 1.0) * has_down
        safe_up, safe_down = torch.where(has_up, up, 1.0), torch.where(has_down, down, -1.0)
        return alpha / (safe_up + self.epsilon), beta / (safe_down - self.epsilon)

    def _denominators(
        self, up: Tensor, down: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What to multiply by, and the fraction that the bias takes."""
        if self.bias_shares:
            return *self.inverses(up, down), None
        above, below = bias.clamp(min=0), bias.clamp(max=0)
        by_up, by_down = self.inverses(up + above, down + below)
        return by_up, by_down, above * by_up + below * by_down


def inverse_scale(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    """1 / scale of a layer norm at each position, `[batch, length, 1]`."""
    scale: Tensor = (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    return 1 / scale


def to_keys(message: Tensor, weights: Tensor, at: Window, keys: int) -> Tensor:
    """`weights^T @ message` for each head: from queries to the first `keys` keys.

    `[rows, heads, queries, starts, head]` to `[rows, heads, keys, starts, head]`: one product a
    head, all starts side by side.
    """
    seen = weights[: at.rows, :, at.first : at.last, :keys]
    shared: Tensor = seen.transpose(-1, -2) @ message.flatten(3)
    return shared.view(*shared.shape[:3], *message.shape[3:])


def make_rule(options: LrpOptions) -> Rule:
    """The rule that the options ask for."""
    if options.telescopes:
        return Telescoped(options)
    if options.rule == "ratio":
        return Ratio(options)
    alpha = {"alphabeta": 0.5, "zplus": 1.0}[options.rule]
    return AlphaBeta(options, alpha, 1 - alpha)
