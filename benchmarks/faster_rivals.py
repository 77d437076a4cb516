"""What the models of benchmarks/faster.py are compared with: chance, and training from scratch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import product

from headcount.bench.costs import Costs
from headcount.config import Config, ModelConfig
from headcount.heads import BLOCKS, SITES, Head, HeadLayout
from headcount.run import Run


def random_like(
    full: HeadLayout, learned: HeadLayout, sites: Sequence[str], seed: int
) -> list[Head]:
    """Heads, units and blocks at random, as many in each layer as a learned layout has.

    Where whole blocks are pruned, as many of each kind stay, in layers drawn at random.
    """
    rng, kept = random.Random(seed), []
    for blocks, holders in BLOCKS.items():
        for index, site in enumerate(holders):
            layers = [n for n in range(len(full.layers[site])) if full.has_block(site, n)]
            there = [n for n in layers if learned.has_block(site, n)]
            chosen = sorted(rng.sample(layers, len(there))) if blocks in sites else there
            if blocks in sites:
                kept += [Head(blocks, layer, index) for layer in chosen]
            if site in sites:
                for layer, like in zip(chosen, there, strict=True):
                    number = min(len(learned.layers[site][like]), len(full.layers[site][layer]))
                    drawn = rng.sample(full.layers[site][layer], number)
                    kept += [Head(site, layer, each) for each in drawn]
    return kept


def rival_config(full: Run, costs: Costs, speedup: float) -> Config | None:
    """The shape with the most weights that is fast enough: fewer layers, heads and units.

    Each stack has its own numbers, in steps of a quarter: a rival may have a deep encoder and a
    shallow decoder, as fast models often do.
    """
    shape = full.config.model
    candidates = [
        (encoder_size + decoder_size, settings | others)
        for encoder_size, settings, smaller in _stacks(full.model.heads, shape, "enc")
        for decoder_size, others, smallest in _stacks(smaller, shape, "dec")
        if costs.speedup(smallest) >= speedup
    ]
    if not candidates:
        return None
    _, settings = max(candidates, key=lambda candidate: candidate[0])
    return full.config.model_copy(update={"model": shape.model_copy(update=settings)})


def _stacks(
    layout: HeadLayout, shape: ModelConfig, stack: str
) -> Iterator[tuple[int, dict[str, int], HeadLayout]]:
    """Smaller shapes of one stack: weights per neuron of the width, settings, and layout."""
    attentions = [site for site in BLOCKS[f"{stack}_layers"] if site in SITES]
    head_width, blocks = shape.head_width_at(stack), len(layout.layers[f"{stack}_ff"][0])
    names = ("encoder_layers", "heads", "head_width", "ff_width")
    if stack == "dec":
        names = ("decoder_layers", "decoder_heads", "decoder_head_width", "decoder_ff_width")
    for layers, heads, units in product(
        range(1, len(layout.layers[stack]) + 1),
        _quarters(shape.heads_at(stack)),
        _quarters(blocks),
    ):
        kept = [head for head in layout.heads([f"{stack}_layers"]) if head.layer < layers]
        kept += [head for head in layout.heads(attentions) if head.index < heads]
        kept += [head for head in layout.heads([f"{stack}_ff"]) if head.index < units]
        width = min(shape.ff_width_at(f"{stack}_ff"), units * shape.ff_block)
        size = layers * (4 * len(attentions) * heads * head_width + 2 * width)
        smaller = layout.keeping(kept, [f"{stack}_layers", *attentions, f"{stack}_ff"])
        yield size, dict(zip(names, (layers, heads, head_width, width), strict=True)), smaller


def _quarters(number: int) -> list[int]:
    """A quarter, half, three quarters and all of a number, rounded up."""
    return sorted({-(-number * part // 4) for part in range(1, 5)})
