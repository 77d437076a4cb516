"""headcount's own training with one of its optimisations replaced by the plain way.

    with_less.py OPTIMISATION FOLDER RECIPE CORPUS UPDATES

The tasks are those of `with_headcount.py train`. `none` leaves all of them in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import torch
import with_headcount
from serving import serve
from torch import Tensor
from torch.nn import functional as F

from headcount.data.batches import Batch, Update
from headcount.data.batches import updates as sorted_updates
from headcount.memory import keep_freed_memory
from headcount.model import embedding, layers
from headcount.model.attention import Attention
from headcount.model.transformer import Transformer
from headcount.training import objective
from headcount.training.distribution import Workers
from headcount.training.objective import Losses

MEMORY = "freed memory is kept"


def main() -> None:
    name, *arguments = sys.argv[1:]
    if name != MEMORY:
        keep_freed_memory()
    PLAIN[name]()
    serve(with_headcount._training(Workers(), *arguments), ["torch"])


def _dropout() -> None:
    for module in (embedding, layers):
        module.dropout = F.dropout


def _projections() -> None:
    def apart(self: Attention, x: Tensor, first: int) -> tuple[Tensor, ...]:
        weights, biases = self.in_weight.chunk(3)[first:], self.in_bias.chunk(3)[first:]
        pairs = zip(weights, biases, strict=True)
        return tuple(self._split(F.linear(x, weight, bias), 1)[0] for weight, bias in pairs)

    Attention.queries_keys_values = lambda self, x: apart(self, x, 0)
    Attention.keys_values = lambda self, x: apart(self, x, 1)


def _attention() -> None:
    def attend(
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        attn_mask: Tensor | None,
        is_causal: bool,
        dropout_p: float,
    ) -> Tensor:
        scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return F.dropout(scores.softmax(-1), dropout_p) @ values

    F.scaled_dot_product_attention = attend


def _loss() -> None:
    def token_losses(
        model: Transformer, states: Tensor, labels: Tensor, smoothing: float
    ) -> Losses:
        logits = model.logits(states)
        loss = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)
        return Losses(loss, loss.detach())

    objective.token_losses = token_losses


def _all_positions() -> None:
    def batch_losses(model: Transformer, batch: Batch, smoothing: float) -> Losses:
        memory, mask = model.encode(batch.source)
        logits = model.logits(model.decode(batch.target_input, memory, mask))
        loss = F.cross_entropy(
            logits.flatten(0, 1),
            batch.target_output.flatten(),
            ignore_index=model.target_pad,
            reduction="sum",
            label_smoothing=smoothing,
        )
        return Losses(loss, loss.detach())

    objective.batch_losses = with_headcount.batch_losses = batch_losses


def _batches() -> None:
    """The same pairs in as many micro-batches of as many pairs, but dealt out at random."""

    def updates(*given: Any, **settings: Any) -> Iterator[Update]:
        stream = list(islice(sorted_updates(*given, **settings), int(sys.argv[-1])))
        pairs = np.concatenate([m.indices for update in stream for m in update.micro_batches])
        np.random.default_rng(0).shuffle(pairs)
        ends = np.cumsum([len(m.indices) for update in stream for m in update.micro_batches])
        parts = iter([pairs[begin:end] for begin, end in pairwise([0, *ends])])
        for update in stream:
            dealt = [replace(old, indices=next(parts)) for old in update.micro_batches]
            yield replace(update, micro_batches=dealt)

    with_headcount.updates = updates


def _adam() -> None:
    class Plain(torch.optim.Adam):
        def __init__(self, *given: Any, fused: bool, **settings: Any) -> None:
            super().__init__(*given, **settings)

    torch.optim.Adam = Plain


PLAIN: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "cheap random numbers for dropout": _dropout,
    "queries, keys and values in one product": _projections,
    "fused attention": _attention,
    "logits, loss and gradient in one tensor": _loss,
    "the same, and no logits for padding": _all_positions,
    "batches of similar lengths": _batches,
    "fused Adam": _adam,
    MEMORY: lambda: None,
}

if __name__ == "__main__":
    main()
