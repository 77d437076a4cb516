"""`headcount prune --plan`: what a pruning would give, before anything is trained.

Multiply-adds and parameters follow from the numbers that stay; time is predicted from prices that
are measured in an engine (`bench.costs`). Which heads will stay is not known yet: the plan keeps
the first ones, evenly over the blocks that stay, and the lowest blocks. An engine that computes
what is there takes the same time for others. In one that fills up what is missing, this is close to
the best case: the lowest blocks make whole layers, and an even number of heads leaves none to be
filled up; what a pruning chooses may be slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headcount.bench.costs import Costs, least, measure_costs
from headcount.heads import BLOCKS, Head, HeadLayout
from headcount.model.arithmetic import count_parameters, translation_products
from headcount.model.decoding import GREEDY
from headcount.model.gating import with_layout
from headcount.progress import Progress, silent
from headcount.pruning.process import check_corpus
from headcount.pruning.selection import Quotas, own_blocks
from headcount.pruning.settings import budgets, check_heads, make_settings
from headcount.pruning.timed import timed_sentences
from headcount.run import Run, open_run, regroup
from headcount.translation import translate_tokens


@dataclass(frozen=True)
class Row:
    """One site, or all together.

    have, keep            how many the model has, and how many the model that is priced has left
    parameters, products  the share that would go
    speedup               predicted
    product_ceiling       if all of it went, and multiply-adds were all that counts (Amdahl)
    ceiling               if all of it went: predicted
    """

    site: str
    have: int
    keep: int | None
    parameters: float
    products: float
    speedup: float
    product_ceiling: float
    ceiling: float

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """What a pruning would give.

    costs    the price list that times are predicted from
    rows     one for each site and, of several, one for all together
    asked    how many times as fast the model is to be, where that was asked for
    percent  of everything at the sites that may then stay (`with_share`); None: out of reach
    """

    costs: Costs
    rows: list[Row]
    asked: float | None = None
    percent: int | None = None

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        rows = [row.to_json() for row in self.rows]
        speedup = self.asked and {"asked": self.asked, "percent": self.percent}
        return {"costs": self.costs.to_json(), "sites": rows, "speedup": speedup}


def plan_rows(
    run: Run,
    sources: Sequence[Sequence[int]],
    keep: Mapping[str, int] | None,
    costs: Costs,
    sites: Sequence[str],
    even: bool = False,
) -> list[Row]:
    """One row for each site, where `keep` says how many stay (None: not said), and a total.

    Multiply-adds are those of translating `sources` greedily, with the run's own translations.
    """
    outputs = translate_tokens(run, sources, GREEDY)
    lengths = [len(tokens) + 1 for tokens in sources], [len(o[0].tokens) + 1 for o in outputs]
    layout, model = run.model.heads, run.model
    full = translation_products(model, *lengths)
    parameters = count_parameters(model)

    def row(name: str, sites: Sequence[str]) -> Row:
        smaller = layout
        if keep is not None:
            smaller = with_numbers(layout, {site: keep[site] for site in sites}, even)
        gone = least(layout, sites)
        return Row(
            name,
            sum(layout.count(site) for site in sites),
            None if keep is None else sum(smaller.count(site) for site in sites),
            1 - count_parameters(with_layout(model, smaller)) / parameters,
            1 - translation_products(model, *lengths, smaller) / full,
            costs.speedup(smaller),
            full / translation_products(model, *lengths, gone),
            costs.speedup(gone),
        )

    rows = [row(site, [site]) for site in sites]
    return rows if len(rows) == 1 else [*rows, row("together", sites)]


def make_plan(
    baseline: Run | Path | str,
    train: Path | str,
    keep: str | int | Mapping[str, int] | None = None,
    sites: str | Sequence[str] | None = None,
    ff_block: int | None = None,
    engine: str | None = None,
    batch: int | None = None,
    *,
    speedup: float | None = None,
    even: bool = False,
    progress: Progress = silent,
) -> Plan:
    """Plan the pruning of a run to the numbers `keep`, and measure what its parts cost.

    The dev set of the corpus `train` is what multiply-adds are counted and times measured with.
    With `speedup` the numbers are those of the largest model that is so many times as fast, if the
    same share of everything stays at each site (`with_share`); without either the plan says what
    each of the sites could give at most.
    """
    run = open_run(baseline)
    aim = {"penalty": 0.0} if keep is None and speedup is None else {}
    settings = make_settings(
        **aim, keep=keep, speedup=speedup, even=even, sites=sites, ff_block=ff_block
    )
    settings = settings.resolved(run.config, run.model.heads)
    run = regroup(run, settings.ff_block)
    layout = run.model.heads
    check_heads(settings, layout, str(run.folder))
    check_corpus(run, Path(train))
    sources = timed_sentences(run, Path(train), batch or 1)
    costs = measure_costs(
        run, sources, settings.sites, engine=engine or "headcount", batch=batch or 1,
        progress=progress,
    )  # fmt: skip
    percent = None if speedup is None else largest_share(layout, settings.sites, costs, speedup)
    numbers: dict[str, int] | None = None
    if percent is not None:
        smaller = with_share(layout, settings.sites, percent)
        numbers = {site: smaller.count(site) for site in settings.sites}
    elif isinstance(settings.keep, dict):
        numbers = {site: settings.keep[site] for site in settings.sites}
    elif settings.keep is not None:  # sites that compete: in proportion
        share = settings.keep / len(layout.heads(settings.sites))
        numbers = {site: round(share * layout.count(site)) for site in settings.sites}
        even = False  # the layers of a site have the same number, or as nearly as can be
    rows = plan_rows(run, sources, numbers, costs, settings.sites, even)
    return Plan(costs, rows, speedup, percent)


def largest_share(
    layout: HeadLayout, sites: Sequence[str], costs: Costs, speedup: float
) -> int | None:
    """How much of everything at the sites may stay in a model that is so many times as fast.

    In per cent, as `with_share` has it; None where not even a model without anything there is fast
    enough.
    """
    for percent in range(100, -1, -1):
        if costs.speedup(with_share(layout, sites, percent)) >= speedup:
            return percent
    return None


def with_share(layout: HeadLayout, sites: Sequence[str], percent: int) -> HeadLayout:
    """The layout with this share of everything at the sites, evenly over the layers.

    The share of each site is that of all it has, rounded down. Blocks that go take heads and units
    with them: where the blocks that stay hold less than the share, all that they hold stays.
    """
    numbers = {site: layout.count(site) * percent // 100 for site in sites}
    blocks = {site: number for site, number in numbers.items() if site in BLOCKS}
    smaller = with_numbers(layout, blocks) if blocks else layout
    inside = {
        site: min(number, smaller.count(site))
        for site, number in numbers.items()
        if site not in blocks
    }
    return with_numbers(smaller, inside) if inside else smaller


def with_numbers(layout: HeadLayout, keep: Mapping[str, int], even: bool = False) -> HeadLayout:
    """The layout with so many heads, units or blocks at each site; heads and units in open blocks.

    The lowest blocks stay that have room for the rest, and in them the first heads and units,
    evenly. `even`: the same number in each layer, of blocks too.
    """
    settings = make_settings(keep=dict(keep), even=even)
    heads = layout.heads(settings.sites)
    places = {head: layout.layers[head.site][head.layer].index(head.index) for head in heads}

    def order(head: Head) -> tuple[int, int]:
        place = places[head], head.layer
        return place if head.site not in BLOCKS else (head.layer, head.index)

    ranks = {head: rank for rank, head in enumerate(sorted(heads, key=order))}
    scores = torch.tensor([-float(ranks[head]) for head in heads], dtype=torch.float64)
    chosen = Quotas(heads, own_blocks(heads), *budgets(settings, layout)).best(scores).tolist()
    kept = [head for head, stays in zip(heads, chosen, strict=True) if stays]
    return layout.keeping(kept, settings.sites)
