"""Positive and negative contributions apart (Bach et al. 2015, Eq. 60)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.ranking.options import LrpOptions
from headcount.ranking.rule import (
    Flow,
    HeadFlow,
    LinearMap,
    Rule,
    SumFlow,
    Window,
    inverse_scale,
    to_keys,
)

ROUNDING = 100
"""A sum of one sign below so many times the precision of the sum of sizes is taken for nothing."""


class AlphaBeta(Rule):
    """Positive contributions share the part alpha, negative ones beta, each in proportion.

    alpha = beta = 0.5 in the authors' later code; `zplus` is alpha = 1, beta = 0. Where a neuron
    has contributions of one sign only, they get all of it.
    """

    def __init__(self, options: LrpOptions, alpha: float, beta: float) -> None:
        super().__init__(options)
        self.alpha, self.beta = alpha, beta

    def fractions(self, contributions: Tensor, dim: int) -> Tensor:
        up, down = contributions.clamp(min=0), contributions.clamp(max=0)
        by_up, by_down = self.inverses(up.sum(dim, keepdim=True), down.sum(dim, keepdim=True))
        return up * by_up if by_down is None else up * by_up + down * by_down

    def add(self, x: Tensor, f: Tensor) -> SumFlow:
        size_x, size_f = x.abs(), f.abs()
        apart, together = x * f < 0, size_x + size_f + self.epsilon

        def share(side: Tensor, size: Tensor) -> Tensor:
            part = torch.where(side > 0, self.alpha, self.beta) * size / (size + self.epsilon)
            return torch.where(apart, part, size / together)

        # Without epsilon two zeros are 0 / 0.
        to_x, to_f = (share(*s).nan_to_num_(0.0) for s in ((x, size_x), (f, size_f)))
        return lambda message, at: (message * at(to_x), message.mul_(at(to_f)))

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        # c+ = (c + |c|) / 2 and c- = (c - |c|) / 2, here and below: half as many products.
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

    def norm(self, x: Tensor, y: Tensor, norm: nn.LayerNorm) -> Flow:
        # Neuron j sees x_j with weight slope_j (1 - 1/width), the others with -slope_j / width.
        width = x.shape[-1]
        slope = norm.weight * inverse_scale(x, norm)  # [batch, length, width]
        steep, own = slope.abs(), slope * x * (1 - 1 / width)
        up, down = x.clamp(min=0).div_(width), x.clamp(max=0).div_(-width)
        others_up, others_down = up.sum(-1, keepdim=True) - up, down.sum(-1, keepdim=True) - down
        rising = slope > 0
        against = torch.where(rising, others_down, others_up) * steep
        along = torch.where(rising, others_up, others_down) * steep
        own_up, own_down = own.clamp(min=0), own.clamp(max=0)
        by_up, by_down = self._with_bias(own_up + against, own_down - along, norm.bias)
        to_itself, by_bias = own_up * by_up, norm.bias.clamp(min=0) * by_up
        # What a positive (negative) x_i gets of each other neuron j, as a share of |x_i| / width.
        if by_down is None:
            from_up, from_down = torch.where(rising, 0.0, by_up), torch.where(rising, by_up, 0.0)
        else:
            from_up = torch.where(rising, -by_down, by_up)
            from_down = torch.where(rising, by_up, -by_down)
            to_itself = to_itself + own_down * by_down
            by_bias = by_bias + norm.bias.clamp(max=0) * by_down
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
        """alpha / sum of positive and beta / sum of negative contributions, where there are any.

        None where negative contributions get nothing anywhere.
        """
        least = (up - down).mul_(ROUNDING * torch.finfo(up.dtype).eps)
        has_up, has_down = up > least, -down > least
        if bool(has_up.all()):
            if self.beta == 0:
                return 1 / (up + self.epsilon), None
            if bool(has_down.all()):
                return self.alpha / (up + self.epsilon), self.beta / (down - self.epsilon)
        alpha = torch.where(has_down, self.alpha, 1.0) * has_up
        beta = torch.where(has_up, self.beta, 1.0) * has_down
        safe_up, safe_down = torch.where(has_up, up, 1.0), torch.where(has_down, down, -1.0)
        return alpha / (safe_up + self.epsilon), beta / (safe_down - self.epsilon)

    def _with_bias(self, up: Tensor, down: Tensor, bias: Tensor) -> tuple[Tensor, Tensor | None]:
        """`inverses` with the bias as one more contribution, unless it is shared out."""
        if self.bias_shares:
            return self.inverses(up, down)
        return self.inverses(up + bias.clamp(min=0), down + bias.clamp(max=0))
