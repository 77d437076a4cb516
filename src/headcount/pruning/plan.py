"""`headcount prune --plan`: what a pruning would give, before anything is trained.

Multiply-adds and parameters follow from the numbers that stay; time is predicted from prices that
are measured in an engine (`bench.costs`). Which heads will stay is not known yet: the plan keeps
the first ones, evenly over the layers, which makes no difference to arithmetic, and of whole
blocks those of the lowest layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headcount.bench.costs import Costs, least, measure_costs
from headcount.heads import BLOCKS, HeadLayout
from headcount.model.arithmetic import count_parameters, translation_products
from headcount.model.decoding import GREEDY
from headcount.model.gating import with_layout
from headcount.progress import Progress, silent
from headcount.pruning.process import check_corpus
from headcount.pruning.settings import check_heads, make_settings
from headcount.pruning.timed import timed_sentences
from headcount.run import Run, open_run, regroup
from headcount.translation import translate_tokens


@dataclass(frozen=True)
class Row:
    """One site, or all together.

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
    percent  of everything at the sites that may then stay, kept evenly; None: it is out of reach
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
    run: Run, sources: Sequence[Sequence[int]], keep: Mapping[str, int | None], costs: Costs
) -> list[Row]:
    """One row for each site of `keep`, the number that stays there (None: not said), and a total.

    Multiply-adds are those of translating `sources` greedily, with the run's own translations.
    """
    outputs = translate_tokens(run, sources, GREEDY)
    lengths = [len(tokens) + 1 for tokens in sources], [len(o[0].tokens) + 1 for o in outputs]
    layout, model = run.model.heads, run.model
    full = translation_products(model, *lengths)
    parameters = count_parameters(model)

    def row(name: str, kept: Mapping[str, int | None]) -> Row:
        smaller = layout
        for site, number in kept.items():
            smaller = smaller if number is None else keep_first(smaller, site, number)
        gone = least(layout, kept)
        numbers = [number for number in kept.values() if number is not None]
        return Row(
            name,
            sum(layout.count(site) for site in kept),
            sum(numbers) if len(numbers) == len(kept) else None,
            1 - count_parameters(with_layout(model, smaller)) / parameters,
            1 - translation_products(model, *lengths, smaller) / full,
            costs.speedup(smaller),
            full / translation_products(model, *lengths, gone),
            costs.speedup(gone),
        )

    rows = [row(site, {site: number}) for site, number in keep.items()]
    return rows if len(rows) == 1 else [*rows, row("together", keep)]


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
    same share of everything stays at each site; without either the plan says what each of the
    sites could give at most.
    """
    run = open_run(baseline)
    aim = {"penalty": 0.0} if keep is None and speedup is None else {}
    settings = make_settings(
        **aim, keep=keep, speedup=speedup, even=even, sites=sites, ff_block=ff_block
    )
    settings = settings.resolved(run.config)
    run = regroup(run, settings.ff_block)
    layout = run.model.heads
    check_heads(settings, layout, str(run.folder))
    check_corpus(run, Path(train))
    sources = timed_sentences(run, Path(train), batch or 1)
    costs = measure_costs(
        run, sources, settings.sites, engine=engine or "headcount", batch=batch or 1,
        progress=progress,
    )  # fmt: skip
    numbers: dict[str, int | None] = dict.fromkeys(settings.sites)
    percent = None if speedup is None else largest_share(layout, settings.sites, costs, speedup)
    if percent is not None:
        numbers = {site: layout.count(site) * percent // 100 for site in settings.sites}
    if isinstance(settings.keep, dict):
        numbers |= {site: settings.keep[site] for site in settings.sites}
    elif settings.keep is not None:  # sites that compete: in proportion
        share = settings.keep / len(layout.heads(settings.sites))
        numbers = {site: round(share * layout.count(site)) for site in settings.sites}
    return Plan(costs, plan_rows(run, sources, numbers, costs), speedup, percent)


def largest_share(
    layout: HeadLayout, sites: Sequence[str], costs: Costs, speedup: float
) -> int | None:
    """How much of everything at the sites may stay in a model that is so many times as fast.

    In per cent, rounded down to whole heads, units and blocks at each site; None where not even a
    model without anything there is fast enough.
    """
    for percent in range(100, -1, -1):
        smaller = layout
        for site in sites:
            smaller = keep_first(smaller, site, layout.count(site) * percent // 100)
        if costs.speedup(smaller) >= speedup:
            return percent
    return None


def keep_first(layout: HeadLayout, site: str, number: int) -> HeadLayout:
    """The layout with so many heads, units or blocks at a site, evenly over its layers.

    Of whole blocks the lowest ones are kept.
    """
    heads = layout.heads([site])
    if site not in BLOCKS:
        places = {head: layout.layers[site][head.layer].index(head.index) for head in heads}
        heads = sorted(heads, key=lambda head: (places[head], head.layer))
    return layout.keeping(heads[:number], [site])
