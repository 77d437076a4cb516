"""What training minimises: label-smoothed cross-entropy of the target tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.batches import Batch
from headcount.model.transformer import Transformer
from headcount.training.cross_entropy import summed_cross_entropy


class Losses(NamedTuple):
    """Sums over the target tokens of a batch (or of a sentence)."""

    smoothed: Tensor
    nll: Tensor


def batch_losses(model: Transformer, batch: Batch, label_smoothing: float) -> Losses:
    """Summed losses of a batch; padding positions never reach the output layer.

    The batch's own counts say how much is padding: reading the tensors would stall a GPU.
    """
    padded = batch.source_tokens < batch.source.numel()
    memory, mask = model.encode(batch.source, padded)
    states = model.decode(batch.target_input, memory, mask)  # [batch, target, width]
    labels = batch.target_output.flatten()
    real = torch.nonzero_static(labels != model.target_pad, size=batch.target_tokens)[:, 0]
    chosen = states.flatten(0, 1).index_select(0, real)  # [tokens, width]
    return token_losses(model, chosen, labels.index_select(0, real), label_smoothing)


def token_losses(model: Transformer, states: Tensor, labels: Tensor, smoothing: float) -> Losses:
    """Losses of states `[tokens, width]` against labels `[tokens]`.

    Smoothing with weight e gives `(1 - e) nll + e (mean over v of -log p_v)`. With
    `-log p_v = lse - z_v` and `nll = lse - z_y` that is `nll + e (z_y - mean z)`, where `z_y` and
    `mean z` are dot products of the state: no second pass over the vocabulary.
    """
    nll = summed_cross_entropy(states, model.output_weight, model.output_bias, labels)
    if not smoothing:
        return Losses(nll, nll.detach())
    difference = F.embedding(labels, model.output_weight) - model.output_weight.mean(0)
    surplus = (states * difference).sum()
    if model.output_bias is not None:
        surplus = surplus + model.output_bias[labels].sum()
        surplus = surplus - len(labels) * model.output_bias.mean()
    return Losses(nll + smoothing * surplus, nll.detach())


class Objective:
    """The plain objective. Pruning replaces it by one with gates and a penalty (Sec. 6.1)."""

    def __init__(self, model: Transformer, label_smoothing: float) -> None:
        self.model = model
        self.label_smoothing = label_smoothing

    def begin_update(self, update: int) -> None:
        """Called once before the micro-batches of an update, with the same seed on all workers."""

    def losses(self, batch: Batch) -> Losses:
        """Summed losses of one micro-batch."""
        return batch_losses(self.model, batch, self.label_smoothing)

    def penalty(self) -> Tensor | None:
        """Added once per update to the mean loss of its tokens."""
        return None

    def metrics(self) -> dict[str, float | list[float]]:
        """More to log with each training line."""
        return {}

    def finished(self) -> str | None:
        """A reason to stop before the last update, where there is one."""
        return None

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep besides model and optimiser."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
