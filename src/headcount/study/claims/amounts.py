"""How much of a model was pruned: what claims about pruned models share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headcount.study.cases import Case, retained
from headcount.study.claims.verdict import Finding, decide, untestable
from headcount.study.results import StudyModel

TOLERANCE = 0.5
"""BLEU points that may be lost where the paper speaks of no major drop."""

About = tuple[float, float, float]
"""A share of the heads, and the smallest and the largest share that count as about it."""


def loss_with(
    case: Case, models: Sequence[StudyModel], sites: Sequence[str], about: About, none: str
) -> Finding:
    """BLEU lost by the models nearest to a share of the heads, on average where several are."""
    if not models:
        return untestable(none)
    total = retained(case.full, sites)
    scored = [model for model in models if model.bleu is not None]
    chosen = nearest(scored, sites, total, about)
    if case.full.bleu is None or not chosen:
        low, high = math.ceil(about[1] * total), math.floor(about[2] * total)
        return untestable(f"No scored model keeps {low} to {high} of the {total} heads.")
    losses = [case.full.bleu - (model.bleu or 0.0) for model in chosen]
    loss, heads = mean(losses), retained(chosen[0], sites)
    return decide(
        loss <= TOLERANCE,
        f"{heads} of {total} heads: BLEU {case.full.bleu - loss:.2f} against {case.full.bleu:.2f}"
        f" ({-loss:+.2f}).",
        heads=heads,
        of=total,
        bleu=case.full.bleu - loss,
        full_bleu=case.full.bleu,
        full_bleu_interval=case.full.scores.bleu_interval,
        loss=loss,
        models=len(chosen),
    )


def nearest(
    models: Sequence[StudyModel], sites: Sequence[str], total: int, about: About
) -> list[StudyModel]:
    """All models with the number of heads that is nearest to a share, inside its bounds."""
    aim, low, high = about
    inside = {m.id: retained(m, sites) for m in models if low <= retained(m, sites) / total <= high}
    if not inside:
        return []
    best = min(inside.values(), key=lambda heads: (abs(heads / total - aim), heads))
    return [model for model in models if inside.get(model.id) == best]


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def count(models: Sequence[StudyModel]) -> str:
    """`1 model`, `2 models`."""
    return f"{len(models)} model{'' if len(models) == 1 else 's'}"
