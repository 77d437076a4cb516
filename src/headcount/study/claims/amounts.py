"""How much of a model was pruned and what it cost: what claims about pruned models share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headcount.study.cases import Case, by_setting, mean_heads, retained, setting_of
from headcount.study.claims.verdict import Finding, Number, decide, undecided, untestable
from headcount.study.results import StudyModel
from headcount.study.score_model import Difference, paired_difference, unpaired_difference

TOLERANCE = 0.5
"""BLEU points that may be lost where the paper speaks of no major drop."""

About = tuple[float, float, float]
"""A share of the heads, and the smallest and the largest share that count as about it."""


def loss_with(
    case: Case, models: Sequence[StudyModel], sites: Sequence[str], about: About, none: str
) -> Finding:
    """BLEU lost by the pruning nearest to a share of the heads, on average over its seeds."""
    if not models:
        return untestable(none)
    total = retained(case.full, sites)
    scored = [model for model in models if model.bleu is not None]
    if case.full.bleu is None or not scored:
        return untestable("The full model and the pruned ones have not both been scored.")
    chosen = nearest(scored, sites, total, about)
    if not chosen:
        numbers = [mean_heads(group, sites) for group in by_setting(scored)]
        kept = min(numbers, key=lambda heads: abs(heads / total - about[0]))
        return untestable(_none_keeps(total, about, kept))
    difference = bleu_difference(chosen, [case.full])
    heads, bleu = mean_heads(chosen, sites), mean([model.bleu or 0.0 for model in chosen])
    return decide_difference(
        difference,
        at_least=-TOLERANCE,
        reason=f"{heads:g} of {total} heads: BLEU {bleu:.2f} against {case.full.bleu:.2f}",
        seeds=len(chosen),
        numbers={
            "heads": heads,
            "of": total,
            "bleu": bleu,
            "full_bleu": case.full.bleu,
            "loss": -difference.value,
            "models": len(chosen),
        },
    )


def bleu_difference(
    models: Sequence[StudyModel], others: Sequence[StudyModel], twins: bool = False
) -> Difference:
    """Mean test BLEU of models minus that of others; paired where sentence counts were kept.

    Models of a side differ in their seed alone, or each is compared with its own twin.
    """
    sides = [[model.scores.sentences for model in side] for side in (models, others)]
    known = [[counts for counts in side if counts is not None] for side in sides]
    all_known = [len(side) for side in known] == [len(models), len(others)]
    if all_known and len({counts.test_set for side in known for counts in side}) == 1:
        settings = [setting_of(model) for model in models] if twins else ()
        return paired_difference(known[0], known[1], twins=settings)
    bleus = [[model.bleu or 0.0 for model in side] for side in (models, others)]
    halves = [
        mean([math.inf if m.scores.bleu_interval is None else m.scores.bleu_interval for m in side])
        for side in (models, others)
    ]
    lines = min((m.scores.lines or 0 for m in (*models, *others)), default=0)
    return unpaired_difference(bleus[0], halves[0], bleus[1], halves[1], lines)


def decide_difference(
    difference: Difference,
    at_least: float,
    reason: str,
    seeds: int,
    numbers: dict[str, Number],
) -> Finding:
    """Holds or not where the interval of a difference in BLEU lies on one side of the limit."""
    known = math.isfinite(difference.half_width)
    numbers = numbers | {
        "difference": difference.value,
        "difference_low": difference.low if known else None,
        "difference_high": difference.high if known else None,
        "paired": difference.paired,
        "test_sentences": difference.sentences,
    }
    if not known:
        return undecided(
            f"{reason} ({difference.value:+.2f}). The scores have no intervals; score the models"
            " again.",
            **numbers,
        )
    text = f"{reason} ({difference.value:+.2f}, 95 % interval {difference.low:+.2f} to"
    text += f" {difference.high:+.2f}{'' if difference.paired else ', not paired'})."
    if difference.low >= at_least or difference.high < at_least:
        return decide(difference.low >= at_least, text, **numbers)
    return undecided(f"{text} {_what_would_decide(difference, at_least, seeds)}", **numbers)


def _what_would_decide(difference: Difference, limit: float, seeds: int) -> str:
    """What a study needs to decide on a difference that is too close to the limit."""
    ways = []
    if not difference.paired:
        ways.append("scoring the models again (it keeps counts per sentence for a paired test)")
    needed = difference.sentences_needed(limit)
    if needed is not None and needed <= 100 * difference.sentences:
        ways.append(f"about {needed:,} test sentences instead of {difference.sentences:,}")
    ways.append(f"more than {seeds} seed{'' if seeds == 1 else 's'}")
    listed = ", ".join(ways[:-1]) + (" or " if len(ways) > 1 else "") + ways[-1]
    return f"The interval includes {limit:+.2f}; {listed} could decide it."


def nearest(
    models: Sequence[StudyModel], sites: Sequence[str], total: int, about: About
) -> list[StudyModel]:
    """All seeds of the setting whose number of heads is nearest to a share, inside its bounds.

    Of two that are as near, the one with fewer heads, then the one with more seeds.
    """
    aim, low, high = about

    def distance(group: list[StudyModel]) -> tuple[float, float, int]:
        heads = mean_heads(group, sites)
        return abs(heads / total - aim), heads, -len(group)

    groups = by_setting(models)
    inside = [group for group in groups if low <= mean_heads(group, sites) / total <= high]
    return min(inside, key=distance, default=[])


def span(total: int, low: float, high: float) -> str | None:
    """`5 to 12 of the 48 heads`; None where no whole number of heads lies between the shares."""
    fewest, most = math.ceil(low * total - 1e-9), math.floor(high * total + 1e-9)
    if fewest > most:
        return None
    numbers = str(most) if fewest == most else f"{fewest} to {most}"
    return f"{numbers} of the {total} heads"


def _none_keeps(total: int, about: About, kept: float) -> str:
    wanted = span(total, about[1], about[2])
    if wanted is None:
        return f"The model has only {total} heads: the claim's share is not a whole number of them."
    return f"No pruned model keeps {wanted}; the nearest keeps {kept:g}."


def mean(values: Sequence[float]) -> float:
    """Of at least one value."""
    return sum(values) / len(values)


def count(models: Sequence[StudyModel]) -> str:
    """`1 model`, `2 models`."""
    return f"{len(models)} model{'' if len(models) == 1 else 's'}"
