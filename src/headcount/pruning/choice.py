"""From settings to a way of choosing heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headcount.data.corpora import Corpus
from headcount.heads import Head, HeadLayout
from headcount.pruning.by_score import ScoredHeads
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.selection import Selection
from headcount.pruning.settings import PruneSettings, budgets
from headcount.pruning.top_k import TopKGates
from headcount.ranking.rank import random_scores, rank
from headcount.run import Run
from headcount.training.distribution import Workers

SENTENCES = 300
"""Dev sentences that scores are measured on."""


def make_selection(
    settings: PruneSettings,
    layout: HeadLayout,
    device: torch.device,
    scores: Mapping[Head, float] | None,
) -> Selection:
    """The selection that the (resolved) settings ask for; `scores` where they name a measure."""
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

    Scores that an analysis has left in the run's head table are used; others are measured on
    sentences of the corpus's dev set. A head of which a measure says nothing comes last.
    """
    heads = run.model.heads.heads(settings.sites)
    if settings.by == "random":
        return random_scores(heads, settings.seed)
    measure = str(settings.by)
    column = run.head_table().columns.get(measure, {})
    if not set(heads) <= set(column):
        sides = [corpus.path("dev", side) for side in ("source", "target")]
        sites = settings.sites
        column = rank(
            run, *sides, by=(measure,), sites=sites, sentences=SENTENCES, workers=workers
        )[measure]
    last = min(column.values(), default=0.0) - 1
    return {head: float(column.get(head, last)) for head in heads}
