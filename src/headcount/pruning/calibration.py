"""A target in time is checked once: the model that was chosen is timed, and prices fitted to that.

A price list takes time to be a sum over parts (`bench.costs`), which it is only roughly. So the
model that was chosen is timed itself, with everything else really removed. Then prices are brought
to what was measured, and the pruning chooses once more. At the end the result is timed as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from headcount.bench.costs import ROUNDING, Costs, least
from headcount.bench.engines import time_runs
from headcount.heads import HeadLayout
from headcount.model.gating import with_layout
from headcount.progress import Progress, silent
from headcount.pruning.timed import timed_sentences
from headcount.run import Run

ROUNDS = 20
"""More than for a price list, since there are only two models to time."""


@dataclass(frozen=True)
class Calibration:
    """What came of timing the model that was chosen first.

    heads     its layout
    promised  how many times as fast as the full model it was by the first prices
    measured  how many times as fast it is
    costs     the prices that follow; their `error` is still that of the first ones
    """

    heads: dict[str, list[list[int]]]
    promised: float
    measured: float
    costs: Costs

    def to_json(self) -> dict[str, Any]:
        """As `pruning.json` has it."""
        return asdict(self)


def calibrate(
    run: Run,
    chosen: HeadLayout,
    sites: Sequence[str],
    train: Path,
    costs: Costs,
    progress: Progress = silent,
) -> Calibration:
    """Time a run without anything at the sites but what was chosen, and fit the prices to it."""
    smaller = replace(run, model=with_layout(run.model, chosen))
    before, after = time_both(run, smaller, train, costs, progress)
    measured = before / after
    prices = fitted(costs, run.model.heads, chosen, sites, measured)
    return Calibration(chosen.to_json(), costs.speedup(chosen), measured, prices)


def fitted(
    costs: Costs, layout: HeadLayout, chosen: HeadLayout, sites: Sequence[str], speedup: float
) -> Costs:
    """Prices by which the chosen model is as many times as fast as it was measured to be.

    All prices are multiplied by one factor, so there is one more model whose time can be right. It
    is the full model where the chosen one is faster than its prices said, so that more may stay;
    where it is slower, it is the model without anything at the sites, known to be fast enough. No
    model is slower than the one or faster than the other: a time beyond them is noise.
    """
    smallest, predicted = least(layout, sites), costs.seconds(chosen)
    seconds = min(max(costs.full / speedup, costs.seconds(smallest)), costs.full)
    other = layout if seconds < predicted else smallest
    distance = costs.seconds(other) - predicted
    if abs(distance) <= ROUNDING * costs.full:
        return costs  # it is that other model, or as good as
    return costs.scaled((costs.seconds(other) - seconds) / distance, other)  # by 1 or more


def current_costs(record: Mapping[str, Any]) -> Costs:
    """The prices that a pruning goes by: as they were measured, or fitted to its first choice."""
    return Costs(**(record.get("calibrated") or record)["costs"])


def compare_speed(
    before: Run, after: Run, train: Path, record: Mapping[str, Any], progress: Progress = silent
) -> dict[str, Any]:
    """What was asked for, promised and measured, in times the speed of the run before."""
    costs = current_costs(record)
    seconds = time_both(before, after, train, costs, progress)
    return {
        "engine": costs.engine,
        "batch": costs.batch,
        "beam": costs.beam,
        "asked": record["settings"]["speedup"],
        "promised": costs.speedup(after.model.heads),
        "measured": seconds[0] / seconds[1],
        "seconds": seconds,
    }


def time_both(
    before: Run, after: Run, train: Path, costs: Costs, progress: Progress = silent
) -> list[float]:
    """Seconds per sentence of two runs, timed in turns as the price list was."""
    sources = timed_sentences(before, train, costs.batch)
    return time_runs(
        [before, after], sources, costs.engine, batch=costs.batch, beam=costs.beam,
        length=costs.length, rounds=ROUNDS, progress=progress,
    )  # fmt: skip
