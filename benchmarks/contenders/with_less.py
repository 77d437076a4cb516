"""headcount's own training with one of its optimisations replaced by the plain way.

    with_less.py OPTIMISATION FOLDER RECIPE CORPUS UPDATES
    with_less.py --list

The tasks are those of `with_headcount.py train`. The first name of the list leaves all of them in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
import with_headcount
from serving import serve
from torch import Tensor
from torch.nn import functional as F

from headcount.cli import keep_freed_memory
from headcount.data.batches import TARGET_ROOM, Batch, Update, _cut
from headcount.data.batches import updates as sorted_updates
from headcount.data.shards import Shards
from headcount.distribution import Workers
from headcount.model import attention, embedding, layers
from headcount.model.attention import Attention
from headcount.model.transformer import Transformer
from headcount.training import objective
from headcount.training.objective import Losses

ALL, MEMORY = "nothing", "freed memory is kept"
IGNORED = -100  # a label that has no loss


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--list"]
    if name == "--list":
        print(json.dumps(list(PLAIN)))
        return
    if name != MEMORY:
        keep_freed_memory()
    PLAIN[name]()
    serve(with_headcount.training(Workers(), *arguments), ["torch"])


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
        scale: float | None,
    ) -> Tensor:
        scores = queries @ keys.transpose(-1, -2) * (scale or queries.shape[-1] ** -0.5)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        if is_causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return F.dropout(scores.softmax(-1), dropout_p) @ values

    F.scaled_dot_product_attention = attend


def _by_steps() -> None:
    attention.faster_by_steps = lambda queries, bias: False


def _loss() -> None:
    objective.token_losses = lambda model, states, labels, smoothing, *teacher: _plain_losses(
        model.logits(states), labels, smoothing
    )


def _all_positions() -> None:
    def batch_losses(
        model: Transformer, batch: Batch, smoothing: float, *teacher: object
    ) -> Losses:
        memory, mask = model.encode(batch.source)
        logits = model.logits(model.decode(batch.target_input, memory, mask))
        labels = batch.target_output.masked_fill(batch.target_output == model.target_pad, IGNORED)
        return _plain_losses(logits.flatten(0, 1), labels.flatten(), smoothing)

    objective.batch_losses = batch_losses


def _plain_losses(logits: Tensor, labels: Tensor, smoothing: float) -> Losses:
    """A plain loop logs the loss that it minimises, so no second pass is made for the other one."""
    loss = F.cross_entropy(
        logits, labels, reduction="sum", ignore_index=IGNORED, label_smoothing=smoothing
    )
    return Losses(loss, loss.detach())


def _batches() -> None:
    """The same pairs in random order, cut into micro-batches of the same padded size."""

    def updates(shards: Shards, **settings: Any) -> Iterator[Update]:
        count = int(sys.argv[-1])
        first = list(islice(sorted_updates(shards, **settings), count))
        example = first[0].micro_batches[0]
        pairs = np.concatenate([old.indices for update in first for old in update.micro_batches])
        np.random.default_rng(0).shuffle(pairs)
        source, target = shards.source_lengths[pairs] + 1, shards.target_lengths[pairs] + 1
        budget = settings["device_tokens"]
        bounds = _cut((source, budget), (target, TARGET_ROOM * budget))
        for number, begins in enumerate(np.array_split(np.arange(len(bounds) - 1), count)):
            parts = [slice(bounds[i], bounds[i + 1]) for i in begins]
            dealt = [
                replace(example, indices=pairs[part], sizes=np.ones_like(pairs[part]))
                for part in parts
            ]
            counts = [int(sum(side[part].sum() for part in parts)) for side in (source, target)]
            yield Update(number, 0, number, dealt, *counts)

    with_headcount.updates = updates


def _adam() -> None:
    class Plain(torch.optim.Adam):
        def __init__(self, *args: Any, fused: bool, **settings: Any) -> None:
            super().__init__(*args, **settings)

    torch.optim.Adam = Plain


PLAIN: dict[str, Callable[[], None]] = {
    ALL: lambda: None,
    "cheap random numbers for dropout": _dropout,
    "queries, keys and values in one product": _projections,
    "fused attention": _attention,
    "attention step by step where that is faster": _by_steps,
    "logits, loss and gradient in one tensor": _loss,
    "one tensor for them, and no logits for padding": _all_positions,
    "batches of similar lengths": _batches,
    "fused Adam": _adam,
    MEMORY: lambda: None,
}

if __name__ == "__main__":
    main()
