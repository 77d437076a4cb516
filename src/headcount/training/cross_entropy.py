"""Output layer and cross-entropy in one: the gradient overwrites the logits.

A vocabulary-sized tensor is the largest of a training step. Torch keeps three of them (logits,
log-probabilities, their gradient) and passes over each; here there is one, and backward finds in
it the gradient of the logits, `softmax(z) - onehot(y)`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
    ) -> Tensor:
        logits = F.linear(states, weight, bias)  # [tokens, vocabulary]
        exact = torch.promote_types(logits.dtype, torch.float32)
        labelled = logits.gather(1, labels[:, None])[:, 0].to(exact)
        top = logits.amax(1).to(exact)
        gradient = logits.softmax(1, dtype=exact)
        # log of the sum of exponentials, from the one probability that cannot underflow
        normaliser = top - gradient.amax(1).log()
        rows = torch.arange(len(labels), device=labels.device)
        gradient[rows, labels] -= 1.0
        ctx.save_for_backward(states, weight, gradient)
        ctx.has_bias = bias is not None
        return (normaliser - labelled).sum()

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> Any:
        states, weight, gradient = ctx.saved_tensors
        gradient = gradient.to(states.dtype)
        to_states = scale * (gradient @ weight)  # [tokens, width]
        to_weight = gradient.t() @ (scale * states)  # [vocabulary, width]
        to_bias = scale * gradient.sum(0) if ctx.has_bias else None
        return to_states, to_weight, to_bias, None


def summed_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor
) -> Tensor:
    """`sum over tokens of -log softmax(W h + b)[y]`, for `h` `[tokens, width]`, `y` `[tokens]`."""
    if torch.is_autocast_enabled(states.device.type):
        lower = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(lower), weight.to(lower)
        bias = None if bias is None else bias.to(lower)
    result: Tensor = _SummedCrossEntropy.apply(states, weight, bias, labels)
    return result
