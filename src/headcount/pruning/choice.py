"""From settings to a way of choosing heads."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from headcount.errors import UserError
from headcount.heads import TABLE_CSV, Head, HeadLayout
from headcount.pruning.by_score import numbers_of
from headcount.pruning.methods import METHODS
from headcount.pruning.selection import Request, Selection
from headcount.pruning.settings import PruneSettings, budgets
from headcount.run import Run


def check_choice(settings: PruneSettings, run: Run) -> None:
    """Stop if `by` is neither a method nor a column of the head table."""
    name = settings.method.name
    if name in METHODS:
        return
    numeric = [column for column, values in numbers_of(run, settings.sites).items() if values]
    if name not in numeric:
        known = dict.fromkeys([*METHODS, *numeric])
        raise UserError(
            f"--by {name}: no pruning method, and {run.analysis / TABLE_CSV} has no such numbers"
            f" of the heads at {','.join(settings.sites)}.",
            f"Choose among {', '.join(known)}.",
        )


def make_selection(
    settings: PruneSettings,
    layout: HeadLayout,
    device: torch.device,
    scores: Mapping[Head, float] | None,
) -> Selection:
    """The selection that the (resolved) settings ask for; `scores` where the method ranks heads."""
    groups, numbers = budgets(settings, layout) if settings.keep is not None else ([], [])
    heads, updates = layout.heads(settings.sites), max(1, settings.choosing)
    request = Request(settings, heads, device, updates, groups, numbers, scores)
    return settings.method.make(request)
