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


def count_parameters(model: Transformer) -> int:
    """How many weights a model has; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def encoder_products(model: Transformer, source_lengths: Sequence[int]) -> int:
    """Multiply-adds to encode sentences of these lengths, EOS included."""
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
    model: Transformer, source_lengths: Sequence[int], target_lengths: Sequence[int]
) -> int:
    """Multiply-adds to translate greedily, step by step: encoder and decoder.

    Lengths count EOS. The past is kept, and the source's keys and values are projected once.
    """
    config = model.config
    network = 2 * config.width * config.ff_width_at("dec_ff") * config.decoder_layers
    each_step = network + config.width * len(model.output_weight)
    total = encoder_products(model, source_lengths)
    for source, steps in zip(source_lengths, target_lengths, strict=True):
        total += steps * each_step
        for layer in model.decoder_layers():
            own, cross = layer.self_attention.attention, layer.cross_attention.attention
            total += steps * _projections(own, config.width)
            total += _looking(own, 1) * steps * (steps + 1) // 2
            total += 2 * config.width * cross.inner * (steps + source)
            total += steps * _looking(cross, source)
    return total


def _projections(attention: Attention, width: int) -> int:
    """Projections of one position: to queries, keys and values, and `W^O`."""
    return 4 * width * attention.inner


def _looking(attention: Attention, keys: int) -> int:
    """Of one query: scores of the keys and the weighted sum of the values."""
    return 2 * keys * attention.inner
