"""Norms: layer norm (Ba et al. 2016), or RMS norm, which neither centres nor shifts (T5)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headcount.config import ModelConfig

Norm = nn.LayerNorm | nn.RMSNorm


def make_norm(config: ModelConfig) -> Norm:
    """The norm that a model uses throughout."""
    kind = nn.RMSNorm if config.norm_kind == "rms" else nn.LayerNorm
    return kind(config.width, eps=config.norm_epsilon)


def norm_function(norm: Norm) -> Callable[[Tensor], Tensor]:
    """What a norm does, without the cost of calling a module."""
    shape, weight, epsilon = list(norm.normalized_shape), norm.weight, norm.eps
    if isinstance(norm, nn.RMSNorm):
        return lambda x: torch.rms_norm(x, shape, weight, epsilon)
    bias, layer_epsilon = norm.bias, norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, layer_epsilon)
