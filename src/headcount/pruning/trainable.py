"""Which weights a pruning may change (Sec. 6.2)."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from headcount.model.transformer import Transformer

ENCODER = ("source_embedding.", "encoder.", "encoder_norm.")


def train_parts(model: Transformer, parts: Collection[str]) -> list[nn.Parameter]:
    """Freeze all weights but those of the parts (`encoder`, `decoder`); the ones that train.

    The encoder is its layers and the source embeddings; all else is the decoder, cross-attention
    too. "By not fine-tuning the decoder, we ensure that the functions of the pruned encoder heads
    do not migrate to the decoder" (Sec. 6.2). An embedding table that both sides share is part of
    both and trains only where both do.
    """
    shared = model.source_embedding.table is model.target_embedding.table
    chosen = []
    for name, parameter in model.named_parameters():
        part = "encoder" if name.startswith(ENCODER) else "decoder"
        needed = {part}
        if shared and parameter is model.source_embedding.table.weight:
            needed = {"encoder", "decoder"}
        parameter.requires_grad_(needed <= set(parts))
        if parameter.requires_grad:
            chosen.append(parameter)
    return chosen
