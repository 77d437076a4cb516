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
        return up * by_up + down * by_down

    def linear(self, x: Tensor, y: Tensor, map_: LinearMap) -> Flow:
        # c+ = (c + |c|) / 2 and c- = (c - |c|) / 2, here and below: half as many products.
        size = x.abs()
        plain_sum, size_sum = y - map_.bias, F.linear(size, map_.magnitude)
        by_up, by_down = self._with_bias(
            (size_sum + plain_sum) / 2, (plain_sum - size_sum) / 2, map_.bias
        )
        only_up = not bool(by_down.any())
        if only_up and bool((x >= 0).all()):
            return self._rectified(x, by_up, map_)
        plain, magnitude = (by_up + by_down) / 2, (by_up - by_down) / 2

        def flow(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            by_plain = message * at(plain)
            by_size = by_plain if only_up else message.mul_(at(magnitude))
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
        width = x.shape[-1]
        slope = norm.weight * inverse_scale(x, norm)  # [batch, length, width]
        rising, falling = slope.clamp(min=0), slope.clamp(max=0).neg()
        up, down = x.clamp(min=0) / width, x.clamp(max=0).neg() / width
        # Neuron j sees x_j with weight slope_j (1 - 1/width), the others with -slope_j / width.
        own = slope * x * (1 - 1 / width)
        other_up, other_down = up.sum(-1, keepdim=True) - up, down.sum(-1, keepdim=True) - down
        total_up = own.clamp(min=0) + rising * other_down + falling * other_up
        total_down = own.clamp(max=0) - rising * other_up - falling * other_down
        by_up, by_down = self._with_bias(total_up, total_down, norm.bias)
        by_bias = norm.bias.clamp(min=0) * by_up + norm.bias.clamp(max=0) * by_down
        from_up = falling * by_up - rising * by_down  # what a positive x_i gets of each j, x n/x_i
        from_down = rising * by_up - falling * by_down
        itself = own.clamp(min=0) * by_up + own.clamp(max=0) * by_down
        itself = itself - up * from_up - down * from_down

        def flow(message: Tensor, at: Window) -> tuple[Tensor, Tensor | None]:
            taken = None if self.bias_shares else (message.sum(2, True) * at(by_bias)).sum()
            to_up = (message * at(from_up)).sum(-1, keepdim=True)
            to_down = (message * at(from_down)).sum(-1, keepdim=True)
            result = message.mul_(at(itself))
            return result.addcmul_(to_up, at(up)).addcmul_(to_down, at(down)), taken

        return flow

    def values(self, weights: Tensor, values: Tensor, outputs: Tensor) -> HeadFlow:
        up, down = values.clamp(min=0), values.clamp(max=0)
        by_up, by_down = self.inverses(weights @ up, weights @ down)

        def flow(message: Tensor, at: Window, keys: int) -> Tensor:
            below = Window(at.rows, 0, keys)
            result = to_keys(message * at.heads(by_up), weights, at, keys).mul_(below.heads(up))
            negative = to_keys(message.mul_(at.heads(by_down)), weights, at, keys)
            return result.addcmul_(negative, below.heads(down))

        return flow

    def inverses(self, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        """alpha / sum of positive and beta / sum of negative contributions, where there are any."""
        least = ROUNDING * torch.finfo(up.dtype).eps * (up - down)
        has_up, has_down = up > least, -down > least
        if bool(has_up.all()) and bool(has_down.all()):
            return self.alpha / (up + self.epsilon), self.beta / (down - self.epsilon)
        alpha = torch.where(has_down, self.alpha, 1.0) * has_up
        beta = torch.where(has_up, self.beta, 1.0) * has_down
        safe_up, safe_down = torch.where(has_up, up, 1.0), torch.where(has_down, down, -1.0)
        return alpha / (safe_up + self.epsilon), beta / (safe_down - self.epsilon)

    def _with_bias(self, up: Tensor, down: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """`inverses` with the bias as one more contribution, unless it is shared out."""
        if self.bias_shares:
            return self.inverses(up, down)
        return self.inverses(up + bias.clamp(min=0), down + bias.clamp(max=0))
