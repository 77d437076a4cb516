"""What the models of benchmarks/faster.py are compared with: chance, and training from scratch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from headcount.bench.costs import Costs
from headcount.config import Config
from headcount.heads import ALL_SITES, BLOCKS, Head, HeadLayout
from headcount.model.arithmetic import weights_of
from headcount.pruning.shape import largest_shape
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
    shape, layout = full.config.model, full.model.heads
    kept = largest_shape(layout, ALL_SITES, costs, speedup, weights_of(full.model))
    if kept is None:
        return None
    layers = layout.keeping(kept, ALL_SITES).layers
    encoder, decoder = (
        {
            "layers": sum(map(bool, layers[f"{stack}_layers"])),
            "heads": max(map(len, layers[stack])),
            "head_width": shape.head_width_at(stack),
            "ff_width": min(
                shape.ff_width_at(f"{stack}_ff"),
                shape.ff_block * max(map(len, layers[f"{stack}_ff"])),
            ),
        }
        for stack in ("enc", "dec")
    )
    settings = {f"decoder_{name}": value for name, value in decoder.items()}
    settings |= {"encoder_layers": encoder.pop("layers"), **encoder}
    return full.config.model_copy(update={"model": shape.model_copy(update=settings)})
