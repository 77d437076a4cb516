"""What training minimises: label-smoothed cross-entropy of the target tokens; its learning rate.

Output layer and cross-entropy are one function. A vocabulary-sized tensor is the largest of a
training step. Torch keeps three of them (logits, log-probabilities, their gradient) and passes over
each; here there is one, and backward finds in it the gradient of the logits,
`softmax(z) - onehot(y)`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.batches import Batch
from headcount.model.transformer import Transformer
from headcount.training.distillation import Teacher
from headcount.training.masking import Ask


def inverse_square_root(update: int, *, scale: float, width: int, warmup: int) -> float:
    """`scale * width^-0.5 * min(update^-0.5, update * warmup^-1.5)`, updates counted from 1."""
    return float(scale * width**-0.5 * min(update**-0.5, update * warmup**-1.5))


def cooldown(update: int, *, updates: int, length: int) -> float:
    """A factor that falls linearly from 1 to 0 over the last `length` of all `updates`.

    Most of the benefit of a falling rate comes from its last part, where the noise of small batches
    dies down. The paper, which trains for weeks, has none.
    """
    return min(1.0, (updates + 1 - update) / (length + 1)) if length else 1.0


class _SummedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        labels: Tensor,
        soft: Tensor | None,
        share: float,
    ) -> tuple[Tensor, Tensor]:
        logits = F.linear(states, weight, bias)  # [tokens, vocabulary]
        exact = torch.promote_types(logits.dtype, torch.float32)
        wanted = labelled = logits.gather(1, labels[:, None])[:, 0].to(exact)
        if soft is not None:  # one dot product per token: no third tensor of the vocabulary's size
            agreed = torch.bmm(soft.to(logits)[:, None], logits[:, :, None]).flatten().to(exact)
            wanted = (1 - share) * labelled + share * agreed
        top = logits.amax(1).to(exact)
        gradient = logits.softmax(1, dtype=exact)
        # log of the sum of exponentials, from the one probability that cannot underflow
        normaliser = top - gradient.amax(1).log()
        rows = torch.arange(len(labels), device=labels.device)
        gradient[rows, labels] -= 1 - share
        if soft is not None:
            gradient.sub_(soft, alpha=share)
        ctx.save_for_backward(states, weight, gradient)
        ctx.has_bias = bias is not None
        nll = (normaliser - labelled).sum()
        ctx.mark_non_differentiable(nll)
        return (normaliser - wanted).sum(), nll

    @staticmethod
    def backward(ctx: Any, scale: Tensor, _: Tensor) -> Any:
        states, weight, gradient = ctx.saved_tensors
        gradient = gradient.to(states.dtype)
        to_states = scale * (gradient @ weight)  # [tokens, width]
        to_weight = None
        if ctx.needs_input_grad[1]:  # not where the decoder is held fixed
            to_weight = gradient.t() @ (scale * states)  # [vocabulary, width]
        to_bias = scale * gradient.sum(0) if ctx.has_bias else None
        return to_states, to_weight, to_bias, None, None, None


def summed_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    soft: Tensor | None = None,
    share: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The sum over tokens of `-log p[y]`, twice: as a loss, and without a gradient, to be logged.

    `p = softmax(W h + b)` for `h` `[tokens, width]`, `y` `[tokens]`. With the probabilities `soft`
    `[tokens, vocabulary]` the loss is `-sum over v of t_v log p_v`, where the target `t` is `soft`
    by its `share` and the label by the rest: `softmax(z) - t` is again the gradient of the logits,
    and nothing of `soft` is kept for backward.
    """
    if torch.is_autocast_enabled(states.device.type):
        lower = torch.get_autocast_dtype(states.device.type)
        states, weight = states.to(lower), weight.to(lower)
        bias = None if bias is None else bias.to(lower)
    losses: tuple[Tensor, Tensor] = _SummedCrossEntropy.apply(
        states, weight, bias, labels, soft, share
    )
    return losses


class Losses(NamedTuple):
    """Sums over the target tokens of a batch (or of a sentence)."""

    smoothed: Tensor
    nll: Tensor


def batch_losses(
    model: Transformer,
    batch: Batch,
    label_smoothing: float,
    teacher: Teacher | None = None,
    weight: float = 1.0,
) -> Losses:
    """Summed losses of a batch; padding positions never reach the output layer.

    Each target token counts `weight` times; a teacher's states are compared at every source token
    and count once. The batch's own counts say how much is padding: reading the tensors would stall
    a GPU.
    """
    padded = batch.source_tokens < batch.source.numel()
    memory, mask = model.encode(batch.source, padded)
    states = model.decode(batch.target_input, memory, mask)  # [batch, target, width]
    labels = batch.target_output.flatten()
    real = torch.nonzero_static(labels != model.target_pad, size=batch.target_tokens)[:, 0]
    chosen = states.flatten(0, 1).index_select(0, real)  # [tokens, width]
    labels = labels.index_select(0, real)
    example, soft, share = memory, None, 0.0
    if teacher is not None:
        (example, soft), share = teacher.predict(batch, padded, real), teacher.share
    losses = token_losses(model, chosen, labels, label_smoothing, soft, share)
    smoothed, nll = (weight * loss for loss in losses)
    if teacher is not None and teacher.states:
        smoothed = smoothed + teacher.difference(memory, example, batch.source)
    return Losses(smoothed, nll)


def token_losses(
    model: Transformer,
    states: Tensor,
    labels: Tensor,
    smoothing: float,
    soft: Tensor | None = None,
    share: float = 0.0,
) -> Losses:
    """Losses of states `[tokens, width]` against labels `[tokens]`.

    Smoothing with weight e gives `(1 - e) nll + e (mean over v of -log p_v)`. With
    `-log p_v = lse - z_v` and `nll = lse - z_y` that is `nll + e (z_y - mean z)`, where `z_y` and
    `mean z` are dot products of the state: no second pass over the vocabulary. Probabilities of a
    teacher, `soft` `[tokens, vocabulary]`, take a `share` of that; they are smooth as they are.
    """
    loss, nll = summed_cross_entropy(
        states, model.output_weight, model.output_bias, labels, soft, share
    )
    smoothing *= 1 - share
    if not smoothing:
        return Losses(loss, nll)
    difference = F.embedding(labels, model.output_weight) - model.output_weight.mean(0)
    surplus = (states * difference).sum()
    if model.output_bias is not None:
        surplus = surplus + model.output_bias[labels].sum()
        surplus = surplus - len(labels) * model.output_bias.mean()
    return Losses(loss + smoothing * surplus, nll)


class Objective:
    """The plain objective. Pruning replaces it by one with gates and a penalty (Sec. 6.1)."""

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        teacher: Teacher | None = None,
        ask: Ask | None = None,
    ) -> None:
        """`ask` turns batches into what the model is asked (`training/masking.py`)."""
        self.model = model
        self.label_smoothing = label_smoothing
        self.teacher, self.ask = teacher, ask

    def begin_update(self, update: int) -> None:
        """Called once before the micro-batches of an update, with the same seed on all workers."""

    def losses(self, batch: Batch) -> Losses:
        """Summed losses of one micro-batch.

        Where only some tokens are asked for, they count for all of the batch's target tokens.
        """
        asked = batch if self.ask is None else self.ask(batch)
        weight = batch.target_tokens / asked.target_tokens
        return batch_losses(self.model, asked, self.label_smoothing, self.teacher, weight)

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
