"""Linear maps, norms and dropout, as all blocks of the model use them.

Norms are layer norm (Ba et al. 2016), or RMS norm, which neither centres nor shifts (T5). A
model without biases keeps them as zeros that are neither trained nor saved, so that code that reads
weights (search, removal, relevance, exports) needs no second path.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig


def add_bias(module: nn.Module, name: str, size: int, learned: bool) -> None:
    """Give a module a bias `[size]` of zeros: a parameter, or a constant."""
    zeros = torch.zeros(size)
    if learned:
        module.register_parameter(name, nn.Parameter(zeros))
    else:
        module.register_buffer(name, zeros, persistent=False)


def make_linear(inputs: int, outputs: int, biases: bool) -> nn.Linear:
    """A linear map, `weight` `[outputs, inputs]`, whose bias is zero at first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there may be nothing to draw
        linear = nn.Linear(inputs, outputs)
    del linear.bias
    add_bias(linear, "bias", outputs, biases)
    return linear


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


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zero each element with probability `rate` and scale the rest up.

    A CPU spends a quarter of a small model's training step on drawing one Mersenne Twister number
    for each element. Here numpy's SFC64, seeded by one draw from torch's generator (so that
    `torch.manual_seed` controls this too), gives 64 bits at a time, and 16 of them decide for one
    element: the rate is resolved to 1/65536. On other devices this is the ordinary dropout.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    seed = int(torch.randint(2**63 - 1, ()).item())
    draws = np.random.SFC64(seed).random_raw((x.numel() + 3) // 4).view(np.int16)
    dropped = round(rate * 65536)
    kept = torch.from_numpy(draws)[: x.numel()].view(x.shape) >= dropped - 32768
    return x * kept.to(x.dtype).mul_(65536 / (65536 - dropped))
