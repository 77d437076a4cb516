"""What the parts of a model cost in time, measured in an engine: the price list of `--speedup`.

The time per sentence is taken to be a sum: of what is always there (embeddings, output layer,
search), a price for each residual block, and a price for each head or block of units inside it.
Multiply-adds alone would mislead: a small product takes longer per multiplication than a large
one, and an engine may fill up what is missing. So models with fewer units, with one unit, and
with fewer blocks are timed in turns, and the prices are those that fit.

Every output is cut or continued to one length: models with parts cut out at random would write
longer or shorter nonsense, and be slower or faster for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headcount.bench.engines import ENGINES, time_runs
from headcount.heads import BLOCKS, SITES, UNIT_SITES, Head, HeadLayout, stack_of
from headcount.model.decoding import GREEDY
from headcount.model.gating import with_layout
from headcount.progress import Progress, silent
from headcount.run import Run
from headcount.translation import translate_tokens

HOLDERS = (*SITES, *UNIT_SITES)
"""The sites whose blocks hold something: heads or units."""

ROUNDING = 1e-4
"""How far predicted times that should be equal may be apart, as a share of the full model's.

Sums are in single precision. A model with a head more or less differs by far more, unless heads
cost nothing in its engine.
"""

Place = tuple[str, int]
"""A site of `HOLDERS` and a layer: one residual block."""


@dataclass(frozen=True)
class Size:
    """What a residual block has; with gates, what it may be expected to have.

    present  whether it is there, 0 to 1
    used     if so: whether it has a unit at all, 0 to 1
    units    if so: how many
    """

    present: Tensor
    used: Tensor
    units: Tensor


Sizes = Mapping[Place, Size]


def sizes_of(layout: HeadLayout) -> Sizes:
    """The sizes of a model, or of a plan for one."""
    sizes = {}
    for sites in BLOCKS.values():
        for layer in range(len(layout.layers[sites[0]])):
            for site in sites:
                number = len(layout.layers[site][layer])
                values = (layout.has_block(site, layer), number > 0, number)
                sizes[site, layer] = Size(*(torch.tensor(float(value)) for value in values))
    return sizes


def totals(sizes: Sizes, fills: bool, moves: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """For each site: how many blocks an engine computes, and how many units in them.

    As a rule these are the ones that are there, and a block without units costs nothing. An engine
    that `fills` has every block in each of its layers and gives all attentions of a stack the
    heads of the largest; its number of layers is that of a model whose blocks have moved together
    (`model.gating.repacked`), where they can (`moves`).
    """
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    sums = dict.fromkeys(HOLDERS, (zero, zero))
    for (site, _), size in sizes.items():
        blocks, units = sums[site]
        sums[site] = blocks + size.present * size.used, units + size.present * size.units
    for sites in BLOCKS.values() if fills else ():
        own = {place: size for place, size in sizes.items() if place[0] in sites}
        layers = 1 + max((layer for _, layer in own), default=-1)
        if not layers:
            continue
        depth = torch.tensor(float(layers))
        if moves:
            depth = _depth([[own[site, n].present for site in sites] for n in range(layers)])
        heads = [size.present * size.units for (site, _), size in own.items() if site in SITES]
        most = torch.stack([one, *heads]).amax()
        for site in sites:
            sums[site] = depth, depth * most if site in SITES else sums[site][1]
    return sums


def _depth(present: Sequence[Sequence[Tensor]]) -> Tensor:
    """The expected number of layers of blocks that are present with these probabilities.

    A block begins a new layer where the last one before it is of the same kind or a later one.
    `last[k]` is the probability that the last block so far is of kind k.
    """
    kinds = len(present[0])
    depth, last = torch.tensor(1.0), [torch.tensor(0.0)] * kinds
    for layer in present:
        for kind, probability in enumerate(layer):
            depth = depth + probability * sum(last[kind:])
            last = [(1 - probability) * each for each in last]
            last[kind] = last[kind] + probability
    return depth


@dataclass(frozen=True)
class Costs:
    """Seconds per sentence: what is always there, and the prices of what pruning can remove.

    length  tokens of every output
    moves   whether blocks can move together in an engine that has no missing ones
    full    measured, of the model as it is
    rest    of what no site holds, or of sites that were not measured
    block   of one residual block of a site, without what it holds; in an engine that fills up, of
            one layer
    unit    of one head or one block of units
    error   how far off the prediction is for half of everything: 0.02 is 2 % too long
    """

    engine: str
    batch: int
    beam: int
    length: int
    moves: bool
    full: float
    rest: float
    block: Mapping[str, float]
    unit: Mapping[str, float]
    error: float = 0.0

    def __post_init__(self) -> None:
        """A list of prices is also read from files."""
        if self.engine not in ENGINES:
            raise ValueError(f"there is no engine '{self.engine}'")
        if unknown := {*self.block, *self.unit} - set(HOLDERS):
            raise ValueError(f"there is no site '{min(unknown)}' that has prices")
        times = (*self.block.values(), *self.unit.values(), self.full)
        sound = all(0 <= time < math.inf for time in times) and math.isfinite(self.rest)
        if not sound or not self.full:
            raise ValueError("prices must be finite and 0 or more, the full model's above 0")

    def expected(self, sizes: Sizes) -> Tensor:
        """Seconds per sentence of these sizes, differentiable where they are."""
        seconds = torch.tensor(self.rest)
        for site, (blocks, units) in self.totals(sizes).items():
            seconds = seconds + self.block.get(site, 0) * blocks + self.unit.get(site, 0) * units
        return seconds

    def totals(self, sizes: Sizes) -> dict[str, tuple[Tensor, Tensor]]:
        """What this engine computes for a model of these sizes."""
        return totals(sizes, ENGINES[self.engine].fills, self.moves)

    def seconds(self, layout: HeadLayout) -> float:
        """Predicted seconds per sentence of a model with this layout."""
        return float(self.expected(sizes_of(layout)))

    def speedup(self, layout: HeadLayout) -> float:
        """How many times as fast as the measured model a model with this layout should be."""
        return self.full / self.seconds(layout)

    def unpriced(self, layout: HeadLayout, sites: Iterable[str]) -> list[str]:
        """Sites that a pruning at `sites` would change, but that have no price."""
        known = set(self.unit)
        if ENGINES[self.engine].fills and "dec" in known:
            known.add("cross")  # both have one price
        return [site for site in holders(layout, sites) if site not in known]

    def scaled(self, factor: float, layout: HeadLayout) -> Costs:
        """All prices times a factor; the prediction for this layout stays what it is."""
        block, unit = (
            {site: factor * price for site, price in prices.items()}
            for prices in (self.block, self.unit)
        )
        scaled = replace(self, block=block, unit=unit)
        return replace(scaled, rest=self.rest + self.seconds(layout) - scaled.seconds(layout))

    def to_json(self) -> dict[str, Any]:
        """As `pruning.json` has it."""
        return asdict(self)


def measure_costs(
    run: Run,
    sources: Sequence[Sequence[int]],
    sites: Sequence[str],
    *,
    engine: str = "headcount",
    batch: int = 1,
    beam: int | None = None,
    rounds: int = 12,
    progress: Progress = silent,
) -> Costs:
    """Time models with parts of these sites cut out on tokenised sentences, and fit prices.

    The prices are brought to the scale at which the model without anything at the sites takes the
    time that it was measured to take: so the largest possible speed-up is a measured one.
    """
    fills = ENGINES.find(engine).fills
    beam = beam or run.config.search.beam
    outputs = translate_tokens(run, sources, GREEDY)
    length = max(2, round(sum(len(best[0].tokens) + 1 for best in outputs) / len(outputs)))
    layout = run.model.heads
    groups = _groups(holders(layout, sites), fills)
    designs = _designs(layout, groups, fills)
    designs.append(("least", least(layout, sites)))
    runs = [run, *(replace(run, model=with_layout(run.model, each)) for _, each in designs)]
    full, *others = time_runs(
        runs, sources, engine, batch=batch, beam=beam, length=length, rounds=rounds,
        progress=progress,
    )  # fmt: skip
    moves = run.config.model.norm == "pre"
    costs = Costs(engine, batch, beam, length, moves, full, full, {}, {})
    timed = [(name, each, seconds) for (name, each), seconds in zip(designs, others, strict=True)]
    for site, *_ in groups:
        costs = _with_unit_price(costs, layout, site, [t[1:] for t in timed if t[0] == site])
    for name, each, seconds in timed:
        if name.startswith("blocks of "):
            costs = _with_block_price(costs, layout, name.split()[-1], each, seconds)
    *_, (_, half, at_half), (_, smallest, at_least) = timed
    costs = _scaled(costs, layout, smallest, at_least)
    return replace(costs, error=costs.seconds(half) / at_half - 1)


def holders(layout: HeadLayout, sites: Iterable[str]) -> list[str]:
    """The sites whose heads or units a pruning at `sites` can remove, alone or with their block."""
    held = {site for name in sites for site in BLOCKS.get(name, (name,))}
    return [site for site in HOLDERS if site in held and layout.count(site)]


def least(layout: HeadLayout, sites: Iterable[str]) -> HeadLayout:
    """The layout when everything at these sites has gone: the most that a pruning can do."""
    return layout.keeping([], sites)


def _groups(sites: Sequence[str], fills: bool) -> list[tuple[str, ...]]:
    """Sites that are priced together, under the name of the first.

    In an engine that fills up, both attentions of a decoder have the heads of the larger one.
    """
    together = [tuple(site for site in ("dec", "cross") if site in sites)] if fills else []
    alone = [(site,) for site in sites if not any(site in group for group in together)]
    return [*alone, *(group for group in together if group)]


def _designs(
    layout: HeadLayout, groups: Sequence[Sequence[str]], fills: bool
) -> list[tuple[str, HeadLayout]]:
    """What is timed besides the model itself.

    For each group of sites half of the units in every layer, and one unit; models without a site's
    blocks, or, where an engine fills up what is missing, without half of the layers; at the end
    half of everything.
    """
    designs = []
    sites = [site for group in groups for site in group]
    for group in groups:
        most = max(len(indices) for site in group for indices in layout.layers[site])
        for number in sorted({most // 2, 1} - {0, most}, reverse=True):
            designs.append((group[0], _with_first(layout, dict.fromkeys(group, number))))
    if fills:
        for blocks, held in BLOCKS.items():
            depth = len(layout.layers[blocks])
            if set(held) & set(sites) and depth > 1:
                kept = [head for head in layout.heads([blocks]) if head.layer < -(-depth // 2)]
                designs.append((f"blocks of {held[0]}", layout.keeping(kept, [blocks])))
    else:
        for site in sites:
            blocks = f"{stack_of(site)}_layers"
            own = BLOCKS[blocks].index(site)
            kept = [head for head in layout.heads([blocks]) if head.index != own]
            designs.append((f"blocks of {site}", layout.keeping(kept, [blocks])))
    halves = {site: -(-max(map(len, layout.layers[site])) // 2) for site in sites}
    return [*designs, ("half", _with_first(layout, halves))]


def _with_first(layout: HeadLayout, numbers: Mapping[str, int]) -> HeadLayout:
    """The layout with the first units of every block of some sites, so many of each."""
    kept = [
        Head(site, layer, index)
        for site, number in numbers.items()
        for layer, indices in enumerate(layout.layers[site])
        for index in indices[:number]
    ]
    return layout.keeping(kept, numbers)


def _with_unit_price(
    costs: Costs, layout: HeadLayout, site: str, timed: Sequence[tuple[HeadLayout, float]]
) -> Costs:
    """Add the price of a site's units: the slope of the line through time against their number."""
    points = [(layout, costs.full), *timed]
    numbers = [float(costs.totals(sizes_of(each))[site][1]) for each, _ in points]
    seconds = [time for _, time in points]
    middle, mean = sum(numbers) / len(numbers), sum(seconds) / len(seconds)
    spread = sum((number - middle) ** 2 for number in numbers)
    shared = sum((n - middle) * (s - mean) for n, s in zip(numbers, seconds, strict=True))
    slope = max(0.0, shared / spread) if spread else 0.0
    return replace(costs, rest=costs.rest - slope * numbers[0], unit={**costs.unit, site: slope})


def _with_block_price(
    costs: Costs, layout: HeadLayout, site: str, fewer: HeadLayout, seconds: float
) -> Costs:
    """Add the price of a site's blocks: what their absence saves beyond the units in them."""
    before, after = (float(costs.totals(sizes_of(each))[site][0]) for each in (layout, fewer))
    if before == after:
        return costs
    price = max(0.0, (costs.seconds(fewer) - seconds) / (before - after))
    return replace(costs, rest=costs.rest - price * before, block={**costs.block, site: price})


def _scaled(costs: Costs, layout: HeadLayout, smallest: HeadLayout, seconds: float) -> Costs:
    """Costs whose prediction for the smallest model is right, and for the full one as before."""
    saved = costs.full - costs.seconds(smallest)
    if saved <= 0:
        return costs
    return costs.scaled(max(0.0, costs.full - seconds) / saved, layout)
