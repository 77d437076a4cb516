"""Multiply-adds of a model, counted from the shapes of its matrix products.

Pruning can make a model faster only by the arithmetic that it removes: the share counted here is
the ceiling against which a measured speed-up is read. Counted are the products of matrices
(projections, attention scores, weighted sums, feed-forward, output layer) of real positions; not
counted are padding, norms, softmax and everything else that is linear in the width.
"""

from __future__ import annotations

from collections.abc import Sequence

from headcount.model.attention import Attention
from headcount.model.transformer import Transformer


def encoder_products(model: Transformer, source_lengths: Sequence[int]) -> int:
    """Multiply-adds to encode sentences of so many tokens, EOS included."""
    config = model.config
    feed_forward = 2 * config.width * config.ff_width_at("enc_ff")
    total = 0
    for length in source_lengths:
        total += length * feed_forward * config.encoder_layers
        for layer in model.encoder_layers():
            attention = layer.self_attention.attention
            total += length * _projections(attention, config.width)
            total += length * _looking(attention, length)
    return total


def translation_products(
    model: Transformer, source_lengths: Sequence[int], target_lengths: Sequence[int], beam: int = 1
) -> int:
    """Multiply-adds to translate, step by step, with the past kept: encoder and decoder.

    Lengths count EOS. Every step but the first has `beam` hypotheses; the keys and values of the
    source are projected once a sentence.
    """
    config = model.config
    pairs = zip(source_lengths, target_lengths, strict=True)
    total = encoder_products(model, source_lengths)
    for source, target in pairs:
        hypotheses = [1] + [beam] * (target - 1)
        rows = sum(hypotheses)
        seen = sum(rows * (step + 1) for step, rows in enumerate(hypotheses))
        total += rows * config.width * len(model.output_weight)
        total += rows * 2 * config.width * config.ff_width_at("dec_ff") * config.decoder_layers
        for layer in model.decoder_layers():
            own, cross = layer.self_attention.attention, layer.cross_attention.attention
            total += rows * _projections(own, config.width) + _looking(own, 1) * seen
            total += 2 * config.width * cross.inner * (rows + source)  # in and out, keys and values
            total += rows * _looking(cross, source)
    return total


def _projections(attention: Attention, width: int) -> int:
    """Of one position: to queries, keys and values, and `W^O`."""
    return 4 * width * attention.inner


def _looking(attention: Attention, keys: int) -> int:
    """Of one query: scores of the keys and the weighted sum of the values."""
    return 2 * keys * attention.inner
