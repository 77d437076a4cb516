"""How good a model is on held-out text, and how specialised its encoder heads have become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headcount.data.batches import collate, evaluation_batches
from headcount.data.sampling import spread_places
from headcount.data.shards import Shards
from headcount.data.tokenizer import Tokenizer
from headcount.model.attention_statistics import (
    REACH,
    confidence_sums,
    largest_weights,
    offset_counts,
)
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.training.distribution import Workers
from headcount.training.objective import batch_losses

DEVICE_TOKENS = 4000
WATCHED_SENTENCES = 300


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs as tokens, and the references of some as text for BLEU."""

    shards: Shards
    sentences: int
    sources: Sequence[str] = ()
    references: Sequence[str] = ()

    def batches(self, limit: int) -> list[np.ndarray]:
        """The numbers of at most `limit` pairs, spread evenly over all, by length."""
        places = np.array(spread_places(len(self.shards), limit))
        lengths = self.shards.source_lengths[places]
        return [places[batch] for batch in evaluation_batches(lengths, DEVICE_TOKENS)]


def dev_loss(model: Transformer, held_out: HeldOut, ids: Tokenizer, workers: Workers) -> float:
    """Cross-entropy in nats a target token, EOS counted, without smoothing or dropout."""
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
    """How far encoder heads have specialised: confidence and the largest positional share.

    Heads specialise long after BLEU looks good, so training logs this beside the loss.
    """
    layers = [i for i, heads in enumerate(model.heads.layers["enc"]) if heads]
    if not layers:
        return {}
    confidences = {i: torch.zeros(()) for i in layers}
    offsets = {i: torch.zeros(()) for i in layers}
    queries_seen, possible = torch.zeros(()), torch.zeros(())
    for indices in held_out.batches(min(WATCHED_SENTENCES, held_out.sentences)):
        batch = collate(held_out.shards, indices, pad=ids.pad, start=ids.start, eos=ids.eos)
        source = batch.source.to(device)
        words = (source != ids.pad) & (source != ids.eos)  # [batch, source]
        with torch.inference_mode(), record(model, {"weights"}, {"enc"}) as recording:
            model.encode(source)
        for i in layers:
            largest, places = largest_weights(recording["enc", i, "weights"], words)
            summed, number = confidence_sums(largest, words)
            hits, inside = offset_counts(places, words)
            confidences[i] = confidences[i] + summed.sum(0).cpu()
            offsets[i] = offsets[i] + hits.sum(0).cpu()
        queries_seen = queries_seen + number.sum().cpu()
        possible = possible + inside.sum(0).cpu()
    confidence = torch.cat([confidences[i] for i in layers]) / queries_seen  # [heads]
    shares = torch.cat([offsets[i] for i in layers]) / possible.clamp(min=1)  # [heads, offsets]
    left, own, right = shares[:, REACH - 1 : REACH + 2].max(0).values.tolist()
    return {
        "confidence_mean": round(float(confidence.mean()), 4),
        "confidence_max": round(float(confidence.max()), 4),
        "share_left": round(left, 4),
        "share_own": round(own, 4),
        "share_right": round(right, 4),
        "positional_max": round(float(shares.max()), 4),
        "positional_heads": int((shares.max(-1).values >= 0.9).sum()),
    }
