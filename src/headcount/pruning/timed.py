"""The method `timed`: learned gates whose price is time, until the model is as fast as asked for.

Hard Concrete gates (`pruning.gates`), but what an open gate costs is what it adds to the time of a
translation in an engine (`bench.costs`), and the weight of that price is not given but found: it is
the multiplier of the constraint "expected time = goal" (an augmented Lagrangian, as in Wang,
Wohlwend & Lei 2020), which rises while the model is too slow and falls while it is too fast.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcount.bench.costs import (
    ROUNDING,
    Costs,
    Place,
    Size,
    Sizes,
    least,
    measure_costs,
    sizes_of,
)
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import corpus_of_run
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.heads import BLOCKS, Head, HeadLayout
from headcount.progress import Progress, silent
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.selection import Request, block_of

if TYPE_CHECKING:
    from headcount.pruning.settings import PruneSettings
    from headcount.run import Run

RATE = 0.5
"""How much the multiplier rises per update if the model takes twice the time that it should."""

STIFFNESS = 40.0
"""Weight of the squared distance from the goal, which damps the multiplier's swings."""

CLOSE = 0.01
"""The expected time is at its goal when it is no further away than this share of the full time."""

SENTENCES = 64
"""At least so many are timed: with fewer, a model's time depends on which ones they are."""

ASK_FOR_LESS = (
    "Ask for less, or for more --sites (without it: all); if the machine was busy, the times are"
    " rough: measure again when it is idle."
)
"""What to do about a speed-up that is out of reach."""


class TimedGates(HardConcreteGates):
    """Gates that bring the expected time to `1 / speedup` of the full model's.

    The goal falls from the full time over the first half of the updates, or over the warm-up if
    that is longer. The choice as it stands is always one that meets the final goal: what is most
    probably there, as much as the time allows.
    """

    too_few = "The target will be met by a choice that is hardly learned"

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        *,
        costs: Costs,
        layout: HeadLayout,
        speedup: float,
        updates: int,
        warmup: int,
        patience: int,
        start: float,
    ) -> None:
        super().__init__(
            heads, device, weight=0.0, warmup=max(warmup, updates // 2), patience=patience,
            start=start,
        )  # fmt: skip
        self.costs, self.layout, self.goal = costs, layout, 1 / speedup
        self._places, self._as_it_is = _places(self.heads, layout), sizes_of(layout)
        own = enumerate(self.blocks)
        opens_with_units = {block for unit, block in own if unit != block}
        self._choices = [gate for gate in range(len(self.heads)) if gate not in opens_with_units]

    @classmethod
    def of(cls, request: Request) -> TimedGates:
        """The gates of a pruning with a speed-up."""
        settings = request.settings
        assert request.costs is not None
        assert request.layout is not None
        return cls(
            request.heads,
            request.device,
            costs=request.costs,
            layout=request.layout,
            speedup=settings.speedup or 1.0,
            updates=request.updates,
            warmup=settings.warmup or 0,
            patience=request.updates if settings.from_scratch else settings.patience,
            start=settings.start,
        )

    def reprice(self, costs: Costs) -> None:
        """Go by these prices from here on."""
        self.costs = costs

    def begin(self, update: int) -> None:
        """Draw the noise, and raise or lower the price of time."""
        super().begin(update)
        with torch.no_grad():
            self.weight += RATE * float(self._gap())

    def penalty(self) -> Tensor:
        """`weight * gap + STIFFNESS / 2 * gap^2`, for the share of time that is too much."""
        gap = self._gap()
        return self.weight * gap + STIFFNESS / 2 * gap**2

    def time(self) -> Tensor:
        """The expected time as a share of the full model's."""
        probabilities = self.distribution.open_probability(self.logits)
        return self.costs.expected(self._sizes(probabilities)) / self.costs.full

    def is_open(self) -> Tensor:
        """As many heads, units and blocks as the time allows, what is most probably there first.

        That is where both gates are open: its own and that of its block, which opens with the first
        that it holds. What does not fit any more is left out, and the rest is tried all the same:
        where an engine fills up heads, some of them cost nothing.

        A larger model is never faster, so what fits is taken many at a time; and one more unit of
        a block costs as much as any other one, so the first that does not fit speaks for the rest.
        """
        there = self.there(self.distribution.open_probability(self.logits.detach())).tolist()
        left = sorted(self._choices, key=lambda gate: -there[gate])
        chosen = torch.zeros(len(self.heads))
        while left:
            number = self._fitting(chosen, left)
            chosen = self._with(chosen, left[:number])
            block = block_of(self.heads[left[number]]) if number < len(left) else None
            left = [gate for gate in left[number:] if block_of(self.heads[gate]) != block]
        return chosen.bool().to(self.device)

    def _fitting(self, chosen: Tensor, gates: Sequence[int]) -> int:
        """How many of the gates, from the first one on, may open besides those chosen `[heads]`."""

        def too_many(number: int) -> bool:
            sizes = self._sizes(self._with(chosen, gates[:number]))
            return float(self.costs.expected(sizes)) > self.goal * self.costs.full

        few, many = 0, 1
        while many <= len(gates) and not too_many(many):
            few, many = many, 2 * many
        numbers = range(few + 1, min(many, len(gates) + 1))
        return few + bisect_left(numbers, True, key=too_many)

    def _with(self, chosen: Tensor, gates: Sequence[int]) -> Tensor:
        """What is chosen, `[heads]`, with these gates and those of their blocks."""
        more = chosen.clone()
        more[[*gates, *(self.blocks[gate] for gate in gates)]] = 1.0
        return more

    def settled(self) -> bool:
        """Whether, besides, the expected time is at its goal."""
        return super().settled() and abs(float(self.time().detach()) - self.goal) <= CLOSE

    def metrics(self) -> dict[str, float | list[float]]:
        """What all gates log, the expected time as a share of the full one, and its price."""
        timing = {"expected_time": float(self.time().detach()), "time_price": self.weight}
        return super().metrics() | timing

    def state(self) -> dict[str, Tensor]:
        """What all gates keep, and the price of time."""
        return super().state() | {"weight": torch.tensor(self.weight, dtype=torch.float64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        super().load_state(state)
        self.weight = float(state["weight"])

    def _gap(self) -> Tensor:
        """How much more time than the goal of this update is expected, as a share."""
        done = min(1.0, self._update / max(1, self.warmup))
        return self.time() - (1 - done * (1 - self.goal))

    def _sizes(self, probabilities: Tensor) -> Sizes:
        """Expected sizes, if each gate is open with its own probability `[gates]`."""
        probabilities = probabilities.cpu()  # a few numbers, and prices are on the CPU
        one = torch.tensor(1.0)
        sizes = dict(self._as_it_is)  # blocks that are gone are a part of it
        for place, (block, units, others) in self._places.items():
            own = probabilities[units]
            used = one if others else 1 - (1 - own).prod()
            present = one if block is None else probabilities[block]
            sizes[place] = Size(present, used, own.sum() + others)
        return sizes


def _places(
    heads: Sequence[Head], layout: HeadLayout
) -> dict[Place, tuple[int | None, list[int], int]]:
    """For each residual block that is there: its gate, those of its units, how many have none."""
    index = {head: number for number, head in enumerate(heads)}
    places: dict[Place, tuple[int | None, list[int], int]] = {}
    for blocks, sites in BLOCKS.items():
        for layer, present in enumerate(layout.layers[blocks]):
            for number, site in enumerate(sites):
                if number in present:
                    here = [Head(site, layer, i) for i in layout.layers[site][layer]]
                    gated = [index[head] for head in here if head in index]
                    block = index.get(Head(blocks, layer, number))
                    places[site, layer] = (block, gated, len(here) - len(gated))
    return places


def known_costs(
    run: Run,
    train: Path,
    settings: PruneSettings,
    progress: Progress = silent,
    costs: Costs | None = None,
) -> Costs | None:
    """What the parts of a run cost, where the settings ask for a speed-up that it can reach."""
    if settings.speedup is None:
        return None
    engine, batch = str(settings.engine), settings.batch or 1
    if costs is not None:
        check_costs(costs, run, settings.sites, engine, batch)
    else:
        sources = timed_sentences(run, train, batch)
        costs = measure_costs(
            run, sources, settings.sites, engine=engine, batch=batch, progress=progress
        )
    most = costs.speedup(least(run.model.heads, settings.sites))
    if most < settings.speedup:
        raise UserError(
            f"--speedup {settings.speedup:g}: without anything at {','.join(settings.sites)}"
            f" {run.folder} is {most:.2f} times as fast ({engine}, batch {batch}, beam"
            f" {costs.beam}).",
            ASK_FOR_LESS,
        )
    return costs


def check_costs(costs: Costs, run: Run, sites: Sequence[str], engine: str, batch: int) -> None:
    """Stop where a price list that is known is not one of this run, these sites and this engine."""
    remedy = "Measure the prices of this pruning: leave the price list out."
    if (costs.engine, costs.batch) != (engine, batch):
        raise UserError(
            f"The prices are those of {costs.engine} with a batch of {costs.batch}, not of {engine}"
            f" with a batch of {batch}.",
            remedy,
        )
    layout = run.model.heads
    if missing := costs.unpriced(layout, sites):
        raise UserError(f"The price list has no price for {', '.join(missing)}.", remedy)
    share = costs.seconds(layout) / costs.full
    if not abs(share - 1) <= ROUNDING:
        raise UserError(
            f"The prices are those of another model: by them {run.folder} takes {share:.2f} times"
            " the time that was measured.",
            remedy,
        )


def timed_sentences(run: Run, train: Path, batch: int) -> list[list[int]]:
    """Sentences of the dev set to time with: two batches of them, and not too few."""
    data = run.config.data
    corpus = corpus_of_run(train, data.source, data.target)
    lines = [line for line in read_lines(corpus.path("dev", "source")) if line.strip()]
    most = run.config.model.max_positions - 1
    lines = spread(lines, max(SENTENCES, 2 * batch))
    encoded = [run.source_tokenizer.encode(line)[:most] for line in lines]
    return [tokens for tokens in encoded if tokens]
