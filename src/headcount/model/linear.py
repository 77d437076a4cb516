"""Linear maps with or without biases.

A model without biases keeps them as zeros that are neither trained nor saved, so that code that
reads weights (search, removal, relevance, exports) needs no second path.
"""

from __future__ import annotations

import torch
from torch import nn


def add_bias(module: nn.Module, name: str, size: int, learned: bool) -> None:
    """Give a module a bias `[size]` of zeros: a parameter, or a constant."""
    zeros = torch.zeros(size)
    if learned:
        module.register_parameter(name, nn.Parameter(zeros))
    else:
        module.register_buffer(name, zeros, persistent=False)


def make_linear(inputs: int, outputs: int, biases: bool) -> nn.Linear:
    """A linear map, `weight` `[outputs, inputs]`, whose bias is zero at first."""
    linear = nn.Linear(inputs, outputs)
    del linear.bias
    add_bias(linear, "bias", outputs, biases)
    return linear
