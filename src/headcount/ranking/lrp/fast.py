"""Fast forms of the rules that are used most: a few matrix products for a whole batch.

None of them defines a rule: each must equal what `Maps` computes from the rule's `fractions`. Tests
compare them, and `maps_of` checks it on a small network before a fast form is used.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.model.primitives import Norm
from headcount.ranking.lrp.maps import (
    Flow,
    HeadFlow,
    LinearMap,
    Maps,
    SumFlow,
    Window,
    bias_of,
    centres,
    inverse_scale,
)
from headcount.ranking.lrp.rules import ROUNDING, AlphaBeta, LrpOptions, Ratio, Rule


class Fast(Maps):
    """A fast form of a rule."""

    @classmethod
    def serves(cls, options: LrpOptions) -> bool:
        """Whether it computes the rule under these options."""
        return True


class FastRatio(Fast):
    """`Ratio`: divide by the sum above, go back through the map, multiply by the activation."""

    rule: Ratio

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        # Not y - b: the bias may be many times as large as the rest.
        inverse = self.rule.inverse(F.linear(x, map_.weight) if self.bias_shares else y)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            shared = message.mul_(at(inverse))
            return (shared @ map_.weight).mul_(at(x)), self._taken(shared, map_.bias)

        return down

    def norm(self, x: Tensor, y: Tensor, norm: Norm) -> Flow:
        bias, centred = bias_of(norm), centres(norm)
        inverse = self.rule.inverse(y - bias if self.bias_shares else y)
        gain = norm.weight * inverse_scale(x, norm)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            shared = message.mul_(at(inverse))
            taken = self._taken(shared, bias)
            shared.mul_(at(gain))
            if centred:
                shared.sub_(shared.mean(-1, keepdim=True))
            return shared.mul_(at(x)), taken

        return down

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        inverse = self.rule.inverse(outputs)

        def down(message: Tensor, at: Window, keys: int) -> Tensor:
            shared = to_keys(message.mul_(at.heads(inverse)), weights, at, keys)
            return shared.mul_(Window(at.rows, 0, keys).heads(values))

        return down

    def _taken(self, shared: Tensor, bias: Tensor) -> Tensor | None:
        return None if self.bias_shares else (shared @ bias).sum()


class Telescoped(Fast):
    """`Ratio` where every denominator is the activation above it, so that they all cancel.

    A message is relevance / activation. It starts as d log(logit) and goes down as a gradient does
    when attention weights and the scales of layer norm are constants; epsilon has no part in it.
    """

    loses_nothing = True

    @classmethod
    def serves(cls, options: LrpOptions) -> bool:
        """With other options some denominators do not cancel."""
        chosen = (options.layer_norm, options.bias, options.attention)
        return chosen == ("linear", "absorb", "constant")

    def start(self, states: Tensor, rows: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        logits = (rows * states).sum(-1) + bias
        return rows / logits[..., None], bias / logits

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        return lambda message, at: (message @ map_.weight, None)

    def norm(self, x: Tensor, y: Tensor, norm: Norm) -> Flow:
        gain, centred = norm.weight * inverse_scale(x, norm), centres(norm)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            scaled = message * at(gain)
            return (scaled.sub_(scaled.mean(-1, keepdim=True)) if centred else scaled), None

        return down

    def product(self, a: Tensor, b: Tensor) -> SumFlow:
        # Relevance a / (a + b) of the product's, over a, is the same for both factors.
        total = a + b
        shared = torch.where(total == 0, 0.0, a * b / total)

        def down(message: Tensor, at: Window) -> tuple[Tensor, Tensor]:
            below = message * at(shared)
            return below, below.clone()

        return down

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        return lambda message, at, keys: to_keys(message, weights, at, keys)

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        # One tensor for both sides: `linear` and `norm` do not change their input.
        return lambda message, at: (message, message)

    def gate(self, message: Tensor, gate: Tensor) -> Tensor:
        return message * gate

    def activation(self, before: Tensor, after: Tensor) -> Flow:
        factor = (after / before).nan_to_num_(0.0)  # 0 / 0
        return lambda message, at: (message.mul_(at(factor)), None)

    def relevance(self, message: Tensor, activation: Tensor) -> Tensor:
        return message * activation


class FastAlphaBeta(Fast):
    """`AlphaBeta` and `ZPlus`.

    c+ = (c + |c|) / 2 and c- = (c - |c|) / 2: products with W and |W| do what twice as many with
    the positive and negative parts of W and x would. Where all sums have both signs, or negative
    contributions get nothing, fewer products are needed still.
    """

    rule: AlphaBeta

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        alpha, epsilon = self.rule.alpha, self.rule.epsilon
        size_x, size_f = x.abs(), f.abs()
        apart, together = x * f < 0, size_x + size_f + epsilon

        def share(side: Tensor, size: Tensor) -> Tensor:
            part = torch.where(side > 0, alpha, 1 - alpha) * size / (size + epsilon)
            return torch.where(apart, part, size / together)

        # Without epsilon two zeros are 0 / 0.
        to_x, to_f = (share(*s).nan_to_num_(0.0) for s in ((x, size_x), (f, size_f)))
        return lambda message, at: (message * at(to_x), message.mul_(at(to_f)))

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        # Without the bias they add up to W x, not y - b: b may be many times as large as the rest.
        size = x.abs()
        if self.bias_shares:
            total, sizes = F.linear(x, map_.weight), F.linear(size, map_.magnitude)
        else:
            total, sizes = y, F.linear(size, map_.magnitude, map_.bias.abs())
        up = (sizes + total).mul_(0.5)
        by_up, by_down = self.inverses(up, up - sizes)
        if by_down is None and bool((x >= 0).all()):
            return self._rectified(x, by_up, map_)
        if by_down is None:
            plain = magnitude = by_up.mul_(0.5)
        else:
            plain, magnitude = (by_up + by_down).mul_(0.5), (by_up - by_down).mul_(0.5)

        def flow(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            by_plain = message * at(plain)
            by_size = by_plain if plain is magnitude else message.mul_(at(magnitude))
            result = (by_plain @ map_.weight).mul_(at(x))
            result.addcmul_(by_size @ map_.magnitude, at(size))
            if self.bias_shares:
                return result, None
            return result, (by_plain @ map_.bias).sum() + (by_size @ map_.bias.abs()).sum()

        return flow

    def _rectified(self, x: Tensor, by_up: Tensor, map_: LinearMap) -> Flow:
        """Inputs that are not negative, and negative contributions that get nothing."""

        def flow(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            shared = message.mul_(at(by_up))
            taken = None if self.bias_shares else (shared @ map_.bias.clamp(min=0)).sum()
            return (shared @ map_.positive).mul_(at(x)), taken

        return flow

    def norm(self, x: Tensor, y: Tensor, norm: Norm) -> Flow:
        if not centres(norm):  # one contribution to each neuron, which gets all of its relevance
            size = (norm.weight * inverse_scale(x, norm) * x).abs()
            passed = (size / (size + self.rule.epsilon)).nan_to_num_(0.0)
            return lambda message, at: (message.mul_(at(passed)), None)
        # Neuron j sees x_j with weight slope_j (1 - 1/width), the others with -slope_j / width.
        width, bias = x.shape[-1], bias_of(norm)
        slope = norm.weight * inverse_scale(x, norm)  # [batch, length, width]
        steep, own = slope.abs(), slope * x * (1 - 1 / width)
        up, down = x.clamp(min=0).div_(width), x.clamp(max=0).div_(-width)
        others_up, others_down = up.sum(-1, keepdim=True) - up, down.sum(-1, keepdim=True) - down
        rising = slope > 0
        against = torch.where(rising, others_down, others_up) * steep
        along = torch.where(rising, others_up, others_down) * steep
        own_up, own_down = own.clamp(min=0), own.clamp(max=0)
        by_up, by_down = self._with_bias(own_up + against, own_down - along, bias)
        to_itself, by_bias = own_up * by_up, bias.clamp(min=0) * by_up
        # What a positive (negative) x_i gets of each other neuron j, as a share of |x_i| / width.
        if by_down is None:
            from_up, from_down = torch.where(rising, 0.0, by_up), torch.where(rising, by_up, 0.0)
        else:
            from_up = torch.where(rising, -by_down, by_up)
            from_down = torch.where(rising, by_up, -by_down)
            to_itself = to_itself + own_down * by_down
            by_bias = by_bias + bias.clamp(max=0) * by_down
        sides = [(from_up.mul_(steep), up), (from_down.mul_(steep), down)]
        for share, side in sides:
            to_itself = to_itself.addcmul_(share, side, value=-1)
        sides = [(share, side) for share, side in sides if bool(share.any())]

        def flow(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            taken = None if self.bias_shares else (message.sum(2, True) * at(by_bias)).sum()
            totals = [(message * at(share)).sum(-1, keepdim=True) for share, _ in sides]
            result = message.mul_(at(to_itself))
            for total, (_, side) in zip(totals, sides, strict=True):
                result.addcmul_(total, at(side))
            return result, taken

        return flow

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        up, down = values.clamp(min=0), values.clamp(max=0)
        by_up, by_down = self.inverses(weights @ up, weights @ down)

        def flow(message: Tensor, at: Window, keys: int) -> Tensor:
            below = Window(at.rows, 0, keys)
            result = to_keys(message * at.heads(by_up), weights, at, keys).mul_(below.heads(up))
            if by_down is None:
                return result
            negative = to_keys(message.mul_(at.heads(by_down)), weights, at, keys)
            return result.addcmul_(negative, below.heads(down))

        return flow

    def inverses(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor | None]:
        """`AlphaBeta.inverses`; None where negative contributions get nothing anywhere."""
        least = (up - down).mul_(ROUNDING * torch.finfo(up.dtype).eps)
        alpha, epsilon = self.rule.alpha, self.rule.epsilon
        if bool((up > least).all()):
            if alpha == 1:
                return 1 / (up + epsilon), None
            if bool((-down > least).all()):
                return alpha / (up + epsilon), (1 - alpha) / (down - epsilon)
        return self.rule.inverses(up, down)

    def _with_bias(self, up: Tensor, down: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """`inverses` with the bias as one more contribution, unless it is shared out."""
        if self.bias_shares:
            return self.inverses(up, down)
        return self.inverses(up + bias.clamp(min=0), down + bias.clamp(max=0))


def to_keys(message: Tensor, weights: Tensor, at: Window, keys: int) -> Tensor:
    """`weights^T @ message` for each head: from queries to the first `keys` keys.

    `[rows, heads, queries, starts, head]` to `[rows, heads, keys, starts, head]`: one product per
    head, all starts side by side.
    """
    seen = weights[: at.rows, :, at.first : at.last, :keys]
    shared: Tensor = seen.transpose(-1, -2) @ message.flatten(3)
    return shared.view(*shared.shape[:3], *message.shape[3:])


# A fast form belongs to a `fractions`: a rule that has a `fractions` of its own does not get it.
FAST: Mapping[Callable[..., Tensor], Sequence[type[Fast]]] = {
    Ratio.fractions: (Telescoped, FastRatio),
    AlphaBeta.fractions: (FastAlphaBeta,),
}


def maps_of(rule: Rule, options: LrpOptions) -> Maps:
    """How a rule is computed: by a fast form if it has one, else from its fractions."""
    for fast in FAST.get(type(rule).fractions, ()):
        if fast.serves(options):
            if _agree(fast, rule, options):
                return fast(rule, options)
            warnings.warn(
                f"{fast.__name__} does not compute the rule '{rule.name}' as it is now: its"
                " slow form runs.",
                stacklevel=2,
            )
    return Maps(rule, options)


def _agree(fast: type[Fast], rule: Rule, options: LrpOptions) -> bool:
    """Whether a fast form hands relevance down a small network as the rule's fractions do."""
    rule = copy.copy(rule)
    rule.epsilon = 0.0 if fast.loses_nothing else 0.1
    expected, relevance = (_small_network(kind(rule, options)) for kind in (Maps, fast))
    return torch.allclose(relevance, expected, rtol=1e-6, atol=1e-9)


@torch.no_grad()
def _small_network(maps: Maps) -> Tensor:
    """Relevance at the inputs of `w . attention(x + W norm(x))`, two positions, four neurons."""
    rng = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    norm, linear = nn.LayerNorm(4).double(), LinearMap(random(4, 4), random(4))
    norm.weight.copy_(random(4))
    norm.bias.copy_(random(4))
    x, weights, at = random(1, 2, 4), random(1, 1, 2, 2).softmax(-1), Window(1, 0, 2)
    normed = norm(x)
    branch = F.linear(normed, linear.weight, linear.bias)
    values = (x + branch)[:, None]
    outputs = weights @ values
    message, _ = maps.start(outputs[:, 0], random(1, 2, 4), random(1, 2))
    message = maps.values(weights, values, outputs)(message[:, None, :, None].clone(), at, 2)
    past, inside = maps.add(x, branch)(message[:, 0], at)
    inside, _ = maps.linear(normed, branch, linear)(inside.clone(), at)
    inside, _ = maps.norm(x, normed, norm)(inside, at)
    return maps.relevance(past + inside, at(x))
