"""From settings to a way of choosing heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from headcount.data.corpora import Corpus
from headcount.errors import UserError
from headcount.heads import Head, HeadLayout
from headcount.pruning.by_score import ScoredHeads
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.selection import Selection
from headcount.pruning.settings import PruneSettings, budgets
from headcount.pruning.top_k import TopKGates
from headcount.ranking.measuring import MEASURES
from headcount.ranking.rank import random_scores, rank, saved_ranking, weights_hash
from headcount.run import Run
from headcount.training.distribution import Workers

SENTENCES = 300
"""Dev sentences that scores are measured on."""

RANDOM = "random"

SELECTIONS: dict[str, Callable[[PruneSettings, HeadLayout, torch.device], Selection]] = {}
"""More ways to choose, by the name that `by` gives them; see docs/extending.md."""


def check_choice(settings: PruneSettings, run: Run) -> None:
    """Stop where `by` names nothing that heads could be chosen by."""
    name = settings.by
    if name is None or name in (*MEASURES, RANDOM, *SELECTIONS):
        return
    numeric = [c for c, values in _numbers(run, settings.sites).items() if values]
    if name not in numeric:
        known = dict.fromkeys([*MEASURES, RANDOM, *SELECTIONS, *numeric])
        raise UserError(
            f"--by {name}: no measure, and {run.analysis / 'heads.csv'} has no such numbers of the"
            f" heads at {','.join(settings.sites)}.",
            f"Choose among {', '.join(known)}.",
        )


def _numbers(run: Run, sites: Sequence[str]) -> dict[str, dict[Head, float]]:
    """What the columns of the head table say of the heads at some sites, in numbers."""
    return {
        name: {h: v for h, v in column.items() if h.site in sites and isinstance(v, float | int)}
        for name, column in run.head_table().columns.items()
    }


def make_selection(
    settings: PruneSettings,
    layout: HeadLayout,
    device: torch.device,
    scores: Mapping[Head, float] | None,
) -> Selection:
    """The selection that the (resolved) settings ask for; `scores` where they name a measure."""
    if settings.by in SELECTIONS:
        return SELECTIONS[settings.by](settings, layout, device)
    heads = layout.heads(settings.sites)
    updates = max(1, (settings.updates or 0) - (settings.finetune or 0))
    if settings.penalty is not None:
        return HardConcreteGates(
            heads,
            device,
            weight=settings.penalty,
            warmup=settings.warmup or 0,
            # A model that learns from scratch has use for all of its updates.
            patience=updates if settings.from_scratch else settings.patience,
            start=settings.start,
        )
    groups, numbers = budgets(settings, layout)
    if scores is None:
        return TopKGates(heads, device, groups, numbers, updates=updates)
    return ScoredHeads(
        heads, device, groups, numbers, scores=scores, updates=updates, steps=settings.steps
    )


def head_scores(
    run: Run, settings: PruneSettings, corpus: Corpus, workers: Workers
) -> dict[Head, float]:
    """A score for each head to choose among: larger means that it matters more.

    Scores that an analysis has left in the run's head table are used, of any column of numbers;
    measures that are missing there, or that were taken when the run had other weights, are taken on
    sentences of the corpus's dev set. A head of which a measure says nothing comes last.
    """
    heads = run.model.heads.heads(settings.sites)
    if settings.by == RANDOM:
        return random_scores(heads, settings.seed)
    measure, sites = str(settings.by), settings.sites
    column = _numbers(run, sites).get(measure, {})
    if measure in MEASURES and (not set(heads) <= set(column) or _is_old(run, measure, sites)):
        sides = [corpus.path("dev", side) for side in ("source", "target")]
        column = rank(
            run, *sides, by=(measure,), sites=sites, sentences=SENTENCES, workers=workers
        )[measure]
    last = min(column.values(), default=0.0) - 1
    return {head: float(column.get(head, last)) for head in heads}


def _is_old(run: Run, measure: str, sites: Sequence[str]) -> bool:
    """Whether a measure in the head table belongs to weights that the run no longer has."""
    origins = saved_ranking(run).get("columns", {}).get(measure, {})
    hashes = {origins[site]["weights"] for site in sites if site in origins}
    return bool(hashes) and hashes != {weights_hash(run)}
