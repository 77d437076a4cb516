"""The study in a few sentences, every number of them computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from headcount.heads import SITE_NAMES, SITES
from headcount.role.registry import kinds_at
from headcount.study.cases import Case, cases_of, functions_of, retained
from headcount.study.claims.verdict import (
    FAILS,
    HOLDS,
    MIXED,
    UNDECIDED,
    UNTESTABLE,
    Verdict,
    percent,
)
from headcount.study.results import StudyModel, StudyResults


def story(results: StudyResults) -> list[tuple[str, list[str]]]:
    """What was found: for each full model its name and some sentences."""
    return [(case.label, _case_lines(case)) for case in cases_of(results)]


def claims_line(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold."""
    counts = Counter(verdict.verdict for verdict in verdicts)
    parts = [f"{counts[HOLDS]} hold here"]
    if counts[MIXED]:
        parts.append(f"{counts[MIXED]} hold for some of the models")
    parts.append(f"{counts[FAILS]} do not hold")
    if counts[UNDECIDED]:
        parts.append(f"{counts[UNDECIDED]} are undecided")
    if counts[UNTESTABLE]:
        parts.append(f"{counts[UNTESTABLE]} cannot be tested with what there is")
    return f"Of {len(verdicts)} findings of the paper, {', '.join(parts[:-1])} and {parts[-1]}."


def _case_lines(case: Case) -> list[str]:
    lines = [_full_line(case)]
    if case.full.roles is not None:
        lines.append(_functions_line(case.full))
    relevant = _relevance_line(case.full)
    lines += [relevant] if relevant else []
    pruned = _pruned_line(case)
    lines += [pruned] if pruned else []
    return lines


def _full_line(case: Case) -> str:
    counts = [f"{case.full.heads.count(site)} of {SITE_NAMES[site]}" for site in SITES]
    line = f"The full model has heads: {', '.join(counts)}."
    scores = case.full.scores
    if scores.bleu is None:
        return line
    spread = "" if scores.bleu_interval is None else f" ± {scores.bleu_interval:.1f}"
    where = "" if scores.lines is None else f" on {scores.lines} test sentences"
    return f"{line} It reaches BLEU {scores.bleu:.1f}{spread}{where}."


def _functions_line(model: StudyModel) -> str:
    heads = model.heads.heads(("enc",))
    found = [functions_of(model, head) for head in heads]
    counts = {
        kind: sum(any(f.kind == kind for f in own) for own in found) for kind in kinds_at("enc")
    }
    named = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    special = sum(bool(own) for own in found)
    return f"{special} of its {len(heads)} encoder heads have a function we can name: {named}."


def _relevance_line(model: StudyModel) -> str | None:
    relevance = model.column("lrp")
    heads = [head for head in model.heads.heads(("enc",)) if head in relevance]
    if not heads:
        return None
    best = max(heads, key=lambda head: relevance[head])
    functions = ", ".join(map(str, functions_of(model, best)))
    what = f"function: {functions}" if functions else "no function that we can name"
    return (
        f"The head that stands out most in its layer is {best} ({what}), with"
        f" {percent(relevance[best])} of the layer's relevance."
    )


def _pruned_line(case: Case) -> str | None:
    scored = [model for model in case.encoder_learned if model.bleu is not None]
    if case.full.bleu is None or not scored:
        return None
    aim = case.encoder_heads / 5
    model = min(scored, key=lambda m: abs(retained(m, ("enc",)) - aim))
    assert model.bleu is not None
    return (
        f"Pruned to {retained(model, ('enc',))} of {case.encoder_heads} encoder heads it has BLEU"
        f" {model.bleu:.1f} ({model.bleu - case.full.bleu:+.1f})."
    )
