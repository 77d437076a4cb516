"""The method `shape`: the largest model of an even shape that is fast enough, cut out by a score.

Gates that pay for their time (`pruning.timed`) go downhill one by one. Where an engine gains
nothing from a missing block until a whole layer can go, that way does not lead to fewer layers:
everything becomes thinner instead, although a shallow decoder may be the better model in the same
time. Here the shape is settled first: the numbers of layers, and of heads and units in each, that
keep the most weights in the time that is allowed. Then scores decide which ones these are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import torch

from headcount.bench.costs import HOLDERS, ROUNDING, Costs
from headcount.errors import UserError
from headcount.heads import BLOCKS, SITES, Head, HeadLayout
from headcount.progress import Progress
from headcount.pruning.by_score import ScoredHeads, scores_by
from headcount.pruning.selection import Request

if TYPE_CHECKING:
    from headcount.data.corpus_folder import Corpus
    from headcount.distribution import Workers
    from headcount.pruning.settings import PruneSettings
    from headcount.run import Run

MEASURE = "gradient"
"""The scores: one pass measures heads, units and blocks alike."""

STEPS = 4
"""Heads and units of a layer stay in steps of a quarter."""


class ShapedHeads(ScoredHeads):
    """Keeps what the largest shape has room for; the rest is masked in steps, as by any score."""

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        largest: Callable[[Costs], Collection[Head] | None],
        costs: Costs,
        *,
        scores: Mapping[Head, float],
        updates: int,
        steps: int,
    ) -> None:
        """`largest` is what stays by some prices; None where no shape is fast enough."""
        # Without budgets nothing stays until `reprice` finds a shape.
        super().__init__(heads, device, (), (), scores=scores, updates=updates, steps=steps)
        self._largest = largest
        self.reprice(costs)

    @classmethod
    def of(cls, request: Request) -> ShapedHeads:
        """The heads of a pruning with a speed-up; stops where no shape is fast enough."""
        settings, layout, scores = request.settings, request.layout, request.scores
        costs, weights, speedup = request.costs, request.weights, settings.speedup or 1.0
        assert layout is not None
        assert costs is not None
        assert weights is not None
        assert scores is not None

        def largest(costs: Costs) -> list[Head] | None:
            return largest_shape(layout, settings.sites, costs, speedup, weights, scores)

        shaped = cls(
            request.heads,
            request.device,
            largest,
            costs,
            scores=scores,
            updates=request.updates,
            steps=settings.steps,
        )
        if not shaped.kept():
            raise UserError(
                f"--speedup {speedup:g} --by shape: even the smallest shape at"
                f" {','.join(settings.sites)} is slower.",
                "Ask for less, or leave --by out; without --sites all of them are pruned.",
            )
        return shaped

    def reprice(self, costs: Costs) -> None:
        """Keep the largest shape by these prices; what was kept before if none is fast enough."""
        shape = self._largest(costs)
        if shape is not None:
            kept = set(shape)
            self._keep(torch.tensor([head in kept for head in self.heads]))


def shape_scores(
    run: Run,
    settings: PruneSettings,
    corpus: Corpus,
    workers: Workers,
    progress: Progress,
) -> dict[Head, float]:
    """How much each head, block of units and block matters."""
    return scores_by(MEASURE, run, settings.sites, corpus, workers, progress)


def largest_shape(
    layout: HeadLayout,
    sites: Sequence[str],
    costs: Costs,
    speedup: float,
    weights: Mapping[Head, int],
    scores: Mapping[Head, float] | None = None,
) -> list[Head] | None:
    """What stays at the sites in the shape with the most weights that is fast enough, if any is.

    `weights` are those of every head and block of units. Without `scores` the first ones stay.
    """
    full = costs.seconds(layout)
    stacks = []
    for stack in ("enc", "dec"):
        held = [site for site in HOLDERS if site in BLOCKS[f"{stack}_layers"]]
        shapes = []
        for kept in _shapes(layout, f"{stack}_layers", sites, scores or {}):
            smaller = layout.keeping(kept, {*held, f"{stack}_layers"} & set(sites))
            size = sum(weights[head] for head in smaller.heads(held))
            shapes.append((size, full - costs.seconds(smaller), kept))
        stacks.append(shapes)
    both = sorted(product(*stacks), key=lambda pair: -(pair[0][0] + pair[1][0]))
    for (_, saved, encoder), (_, more, decoder) in both:
        # What the stacks save adds up: most pairs need no layout of their own to be ruled out.
        if (full - saved - more) * speedup > costs.full * (1 + ROUNDING):
            continue
        kept = [*encoder, *decoder]
        if costs.seconds(layout.keeping(kept, sites)) * speedup <= costs.full:
            return kept
    return None


def _shapes(
    layout: HeadLayout, blocks: str, sites: Sequence[str], scores: Mapping[Head, float]
) -> Iterator[list[Head]]:
    """What stays of one stack (its residual blocks are the site `blocks`) in each even shape."""
    there = layout.heads([blocks])
    depths = [there]
    if blocks in sites:
        kinds = len(BLOCKS[blocks])
        for number in range(1, len(there) // kinds + 1):
            layers = best_layers(there, kinds, number, scores)
            if layers is not None and len(layers) < len(there):
                depths.append(layers)
    own = [site for site in BLOCKS[blocks] if site in sites]
    groups = [[site for site in own if site in SITES], [site for site in own if site not in SITES]]
    sizes = [_quarters(max([0, *(len(i) for s in group for i in layout.layers[s])]))
             for group in groups]  # fmt: skip
    for kept, numbers in product(depths, product(*sizes)):
        stays = list(kept) if blocks in sites else []
        for group, number in zip(groups, numbers, strict=True):
            for block in kept:
                site = BLOCKS[blocks][block.index]
                if site in group:
                    held = [Head(site, block.layer, i) for i in layout.layers[site][block.layer]]
                    stays += sorted(held, key=lambda head: -scores.get(head, 0.0))[:number]
        yield stays


def best_layers(
    blocks: Sequence[Head], kinds: int, number: int, scores: Mapping[Head, float]
) -> list[Head] | None:
    """`number` layers made of these residual blocks, in their order, with the best scores in all.

    A layer has one block of each kind, which may come from different layers: the attention of
    the first and the feed-forward network of the third, if nothing between them stays.
    """
    best: list[tuple[float, list[Head]] | None] = [(0.0, []), *([None] * (kinds * number))]
    for block in blocks:
        for place in reversed(range(kinds * number)):  # so that a block is not taken twice
            before, after = best[place], best[place + 1]
            if before is None or place % kinds != block.index:
                continue
            total = before[0] + scores.get(block, 0.0)
            if after is None or total > after[0]:
                best[place + 1] = (total, [*before[1], block])
    return best[-1] and best[-1][1]


def _quarters(number: int) -> list[int]:
    """A quarter, half, three quarters and all of a number, rounded up."""
    return sorted({-(-number * step // STEPS) for step in range(1, STEPS + 1)})
