"""How sensitive the loss is to a head's gate: E |d loss / d gate| (Michel et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.model.gating import gated
from headcount.model.transformer import Transformer
from headcount.ranking.evidence import Place
from headcount.training.objective import token_losses


def gradient(
    model: Transformer,
    source: Tensor,
    target_input: Tensor,
    labels: Tensor,
    attentions: Sequence[Place],
) -> Tensor:
    """|d loss / d gate| of each sentence, `[batch, heads]`, at the gates that the model has.

    The loss is the sentence's cross-entropy summed over target tokens. Every sentence has its own
    gates, so that one backward pass gives the gradients of all of them.
    """
    modules = model.attentions()
    gates: dict[Place, Tensor] = {}
    for place in attentions:
        attention = modules[place]
        gate = attention.gate
        ones = torch.ones(len(source), len(attention.heads), device=source.device)
        values = ones if gate is None else ones * gate.detach()
        gates[place] = values.to(model.output_weight.dtype).requires_grad_()
    real = labels != model.target_pad
    with torch.enable_grad(), gated(model, gates):
        memory, mask = model.encode(source)
        states = model.decode(target_input, memory, mask)
        loss = token_losses(model, states[real], labels[real], 0.0).smoothed
        # Without cross-attention nothing of the encoder reaches the loss: gradients of zero.
        gradients = torch.autograd.grad(loss, list(gates.values()), materialize_grads=True)
    return torch.cat(gradients, 1).abs()
