"""Multiply-adds of a model, counted from the shapes of its matrix products.

Pruning can make a model faster only by the arithmetic that it removes: the share counted here is
the ceiling against which a measured speed-up is read. Counted are the products of matrices
(projections, attention scores, weighted sums, feed-forward, output layer) of real positions; not
counted are padding, norms, softmax and everything else that is linear in the width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headcount.heads import BLOCKS, SITES, UNIT_SITES, Head, HeadLayout
from headcount.model.transformer import Transformer


def count_parameters(model: Transformer) -> int:
    """How many weights a model has; tied ones count once."""
    return sum(parameter.numel() for parameter in model.parameters())


def unit_counts(model: Transformer) -> dict[str, int]:
    """How many units the feed-forward networks of each side have in all layers."""
    counts = dict.fromkeys(UNIT_SITES, 0)
    for (site, _), network in model.feed_forwards().items():
        counts[site] += len(network.unit_block)
    return counts


def gate_parameters(model: Transformer, heads: Iterable[Head]) -> list[int]:
    """How many weights go with each head, block of units or block, if it goes alone.

    Biases and norms count too. What a block holds counts as it is in the model now.
    """
    config, sizes = model.config, []
    maps, biases = 2 if config.gated else 1, int(config.biases)
    for head in heads:
        site, size = head.site, 0
        own: tuple[int, ...] = (head.index,)
        if site in BLOCKS:
            site = BLOCKS[site][head.index]
            own = model.heads.layers[site][head.layer]
            norm = 0 if config.norm == "post" else 1 if config.norm_kind == "rms" else 2
            size = config.width * (biases + norm)
        if site in SITES:
            size += len(own) * config.head_width_at(site) * (4 * config.width + 3 * biases)
        else:
            units = sum(len(config.units_of(site, block)) for block in own)
            size += units * ((maps + 1) * config.width + maps * biases)
        sizes.append(size)
    return sizes


def weights_of(model: Transformer) -> dict[Head, int]:
    """How many weights each head and each block of units has."""
    heads = model.heads.heads((*SITES, *UNIT_SITES))
    return dict(zip(heads, gate_parameters(model, heads), strict=True))


def encoder_products(
    model: Transformer, source_lengths: Sequence[int], layout: HeadLayout | None = None
) -> int:
    """Multiply-adds to encode sentences of these lengths, EOS included.

    With `layout`, those of the model if it had these heads, units and blocks.
    """
    shape = _Shape(model, layout)
    return sum(
        length * (shape.projections("enc") + shape.looking("enc", length) + shape.network("enc_ff"))
        for length in source_lengths
    )


def translation_products(
    model: Transformer,
    source_lengths: Sequence[int],
    target_lengths: Sequence[int],
    layout: HeadLayout | None = None,
) -> int:
    """Multiply-adds to translate greedily, step by step: encoder and decoder.

    Lengths count EOS. The past is kept, and the source's keys and values are projected once.
    """
    shape = _Shape(model, layout)
    cross = shape.projections("cross") // 2
    step = shape.projections("dec") + cross + shape.network("dec_ff")
    step += model.config.width * len(model.output_weight)
    total = encoder_products(model, source_lengths, layout)
    for source, steps in zip(source_lengths, target_lengths, strict=True):
        total += steps * step + source * cross
        total += shape.looking("dec", 1) * steps * (steps + 1) // 2
        total += steps * shape.looking("cross", source)
    return total


class _Shape:
    """Multiply-adds of all layers of a site."""

    def __init__(self, model: Transformer, layout: HeadLayout | None) -> None:
        self.config, self.layout = model.config, layout or model.heads

    def projections(self, site: str) -> int:
        """Of one position: to queries, keys and values, and `W^O`."""
        return 4 * self.config.width * self._inner(site)

    def looking(self, site: str, keys: int) -> int:
        """Of one query: scores of the keys and the weighted sum of the values."""
        return 2 * keys * self._inner(site)

    def network(self, site: str) -> int:
        """Of one position: the feed-forward networks."""
        blocks = (block for layer in self.layout.layers[site] for block in layer)
        units = sum(len(self.config.units_of(site, block)) for block in blocks)
        return (3 if self.config.gated else 2) * self.config.width * units

    def _inner(self, site: str) -> int:
        return self.layout.count(site) * self.config.head_width_at(site)
