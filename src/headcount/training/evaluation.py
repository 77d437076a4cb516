"""How good a model is on held-out text, and how specialised its encoder heads have become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headcount.data.batches import collate, evaluation_batches
from headcount.data.shards import Shards
from headcount.data.splitting import spread_indices
from headcount.data.tokenizer import Tokenizer
from headcount.distribution import Workers
from headcount.model.transformer import Transformer
from headcount.role.specialisation import SENTENCES, Watched, specialisation
from headcount.training.objective import batch_losses

DEVICE_TOKENS = 4000


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs as tokens, some references as text for BLEU, and perhaps parses."""

    shards: Shards
    sentences: int
    sources: Sequence[str] = ()
    references: Sequence[str] = ()
    parsed: Watched | None = None

    def watched(self) -> Watched:
        """The sentences that heads are watched on: parsed ones where there are any."""
        if self.parsed is not None:
            return self.parsed
        numbers = spread_indices(len(self.shards), min(SENTENCES, self.sentences))
        return Watched.tokens([self.shards.pair(place)[0].tolist() for place in numbers])

    def batches(self, limit: int) -> list[np.ndarray]:
        """The numbers of at most `limit` pairs, spread evenly over all, by length."""
        numbers = np.array(spread_indices(len(self.shards), limit))
        lengths = self.shards.source_lengths[numbers]
        return [numbers[batch] for batch in evaluation_batches(lengths, DEVICE_TOKENS)]


def dev_loss(model: Transformer, held_out: HeldOut, ids: Tokenizer, workers: Workers) -> float:
    """Cross-entropy in nats per target token, EOS counted, without smoothing or dropout."""
    batches = held_out.batches(held_out.sentences)
    total = torch.zeros(2, dtype=torch.float64)
    with torch.inference_mode():
        for indices in workers.share(batches):
            batch = collate(held_out.shards, indices, pad=ids.pad, start=ids.start, eos=ids.eos)
            losses = batch_losses(model, batch.to(workers.device), 0.0)
            total += torch.tensor([losses.nll.item(), batch.target_tokens], dtype=torch.float64)
    total = workers.sum(total.to(workers.device)).cpu()
    return float(total[0] / total[1])


def watch_heads(
    model: Transformer, held_out: HeldOut, ids: Tokenizer, device: torch.device
) -> dict[str, float | int]:
    """How far encoder heads have specialised, for the training log."""
    return specialisation(model, held_out.watched(), ids, device)
