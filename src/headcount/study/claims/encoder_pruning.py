"""Claims about models with encoder heads pruned: how many can go, which stay (Sec. 6.1, 6.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from headcount.heads import Head
from headcount.pruning.methods import GATES
from headcount.study.cases import (
    Case,
    by_setting,
    functions_of,
    is_specialised,
    mean_heads,
    mean_over_settings,
    retained,
)
from headcount.study.claims.amounts import count, loss_with, mean, nearest, span
from headcount.study.claims.verdict import (
    DRAWS,
    Claim,
    Finding,
    decide,
    decide_against_chance,
    percent,
    shuffled_within_layers,
    untestable,
)
from headcount.study.results import StudyModel

FIFTH, TWELFTH = (1 / 5, 0.1, 0.25), (1 / 12, 0.04, 0.1)
THIRD = (1 / 3, 0.25, 0.5)
SURVIVAL_RATIO = 1.5
SCORE_RISE = 0.10
MOST_UNDECIDED = 0.05

NO_PRUNINGS = "No model was pruned in the encoder alone by learned gates."
NO_ROLES = "Functions of heads were not looked for in the full model (headcount roles)."


def gates_decide(case: Case) -> Finding:
    """Sec. 6.1: gates end almost completely closed or completely open; controls do not count."""
    gates = undecided = 0
    for model in case.pruned:
        if model.method != GATES or model.is_control:
            continue
        if model.pruning and "decided" in model.pruning:
            gates += len(model.pruning["kept"]) + len(model.pruning["closed"])
            undecided += len(model.pruning["decided"]["undecided"])
    if not gates:
        return untestable("No model was pruned with Hard Concrete gates.")
    return decide(
        undecided <= MOST_UNDECIDED * gates,
        f"{undecided} of {gates} gates were neither 0 nor 1 with probability 1/2 in the end.",
        gates=gates,
        undecided=undecided,
    )


def fifth_of_encoder_heads(case: Case) -> Finding:
    """Sec. 6.2: 10 of 48 heads are enough to stay within 0.15 BLEU (WMT)."""
    return loss_with(case, case.encoder_learned, ("enc",), FIFTH, NO_PRUNINGS)


def twelfth_of_encoder_heads(case: Case) -> Finding:
    """Sec. 6.2: with 4 of 48 heads only 0.25 BLEU is lost (OpenSubtitles)."""
    return loss_with(case, case.encoder_learned, ("enc",), TWELFTH, NO_PRUNINGS)


def specialised_heads_last(case: Case) -> Finding:
    """Sec. 6.2: heads with a function are the last to be pruned."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    models = _sparse(case, 1 / 12, 1 / 2)
    if not models:
        return untestable(
            "No learned pruning of the encoder keeps"
            f" {span(case.encoder_heads, 1 / 12, 1 / 2) or 'so few heads'}."
        )
    heads = case.full.heads.heads(("enc",))
    special = [head for head in heads if is_specialised(case.full, head)]
    others = [head for head in heads if head not in set(special)]
    if not special or not others:
        return untestable("All heads of the full model, or none, have a function.")
    kept_special, kept_others = _kept_share(models, special), _kept_share(models, others)
    p_value, expected = _as_many_by_chance(case, models, set(special))
    return decide_against_chance(
        kept_special > 0 and kept_special >= SURVIVAL_RATIO * kept_others,
        p_value,
        DRAWS,
        f"In {count(models)} {percent(kept_special)} of the heads with a function stay and"
        f" {percent(kept_others)} of the others; were they drawn at random within each layer,"
        f" {percent(expected)} of those with a function would stay",
        "more prunings or seeds could decide it",
        specialised_heads=len(special),
        other_heads=len(others),
        kept_specialised=kept_special,
        kept_others=kept_others,
        kept_by_chance=expected,
        models=len(models),
    )


def functions_survive(case: Case) -> Finding:
    """Sec. 6.2: the model with 17 of 48 heads retains heads with all the functions."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    analysed = [model for model in case.encoder_learned if model.roles is not None]
    models = nearest(analysed, ("enc",), case.encoder_heads, THIRD)
    if not models:
        return untestable(
            "No pruning whose heads were analysed keeps"
            f" {span(case.encoder_heads, THIRD[1], THIRD[2]) or 'about a third of the heads'}."
        )
    before = _function_names(case.full)
    if not before:
        return untestable("No head of the full model has a function.")
    lost = sorted(set().union(*(before - _function_names(model) for model in models)))
    listed = f" Lost: {', '.join(lost)}." if lost else ""
    return decide(
        not lost,
        f"{len(before) - len(lost)} of {len(before)} functions are still there with"
        f" {mean_heads(models, ('enc',)):g} of {case.encoder_heads} heads.{listed}",
        functions=len(before),
        retained_functions=len(before) - len(lost),
        heads=mean_heads(models, ("enc",)),
    )


def functions_drift(case: Case) -> Finding:
    """Sec. 6.2: with fewer heads some functions drift to other heads."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    models = [model for model in _sparse(case, 0.0, 1 / 2) if model.roles is not None]
    if not models:
        return untestable(
            "No learned pruning whose heads were analysed keeps at most half of the encoder heads."
        )
    drifts = {model.id: _drifts(case.full, model) for model in models}
    moved = sum(map(len, drifts.values()))
    with_drift = sum(map(bool, drifts.values()))
    example = next((drift[0] for drift in drifts.values() if drift), None)
    shown = f", for example {example[1]} to {example[0]}" if example else ""
    return decide(
        mean_over_settings(models, lambda model: bool(drifts[model.id])) >= 1 / 2,
        f"In {with_drift} of {count(models)} a function of a pruned head moved to a head that"
        f" remains ({moved} in all{shown}).",
        models=len(models),
        models_with_drift=with_drift,
        drifts=moved,
    )


ENCODER_CLAIMS = (
    Claim(
        "gates-decide",
        "Sec. 6.1",
        "Gates end up open or closed, hardly ever in between.",
        "At most 5 % of all Hard Concrete gates with a penalty are neither 0 nor 1 with probability"
        " 1/2 when heads are chosen.",
        gates_decide,
        short="gates end open or closed",
    ),
    Claim(
        "fifth-of-encoder-heads-enough",
        "Sec. 6.2",
        "About a fifth of the encoder heads is enough.",
        "The learned encoder pruning nearest to 1/5 of the heads (1/10 to 1/4) loses at most 0.5"
        " BLEU on the test set.",
        fifth_of_encoder_heads,
        short="a fifth of the encoder heads is enough",
    ),
    Claim(
        "twelfth-of-encoder-heads-enough",
        "Sec. 6.2",
        "About a twelfth of the encoder heads is enough.",
        "The learned encoder pruning nearest to 1/12 of the heads (1/25 to 1/10) loses at most 0.5"
        " BLEU on the test set.",
        twelfth_of_encoder_heads,
        short="a twelfth is enough",
    ),
    Claim(
        "specialised-heads-last",
        "Sec. 6.2",
        "Heads with a function are pruned last.",
        "Over learned encoder prunings that keep 1/12 to 1/2 of the heads, each counting once for"
        " all its seeds, the share kept of heads with a function in the full model is at least 1.5"
        " times that of the others, and at most 5 % of random shufflings of functions within layers"
        " reach it.",
        specialised_heads_last,
        short="heads with a function go last",
    ),
    Claim(
        "functions-survive",
        "Sec. 6.2",
        "With a third of the heads all functions are still there.",
        "The learned encoder pruning nearest to 1/3 of the heads (1/4 to 1/2) has heads with every"
        " function (position, relation, rare words) that heads of the full model have, in every"
        " seed whose heads were analysed.",
        functions_survive,
        short="functions survive pruning",
    ),
    Claim(
        "functions-drift",
        "Sec. 6.2",
        "Functions drift to other heads when there are fewer.",
        "In at least half of the learned encoder prunings that keep at most half of the heads, each"
        " counting once for all its seeds, a remaining head has a function that it lacked in the"
        " full model, 10 points above its score there, while a head that had it was pruned.",
        functions_drift,
        short="functions move to other heads",
    ),
)


def _sparse(case: Case, low: float, high: float) -> list[StudyModel]:
    """Learned encoder prunings that keep a share of the heads within these bounds, at least one."""
    return [
        model
        for model in case.encoder_learned
        if low <= retained(model, ("enc",)) / case.encoder_heads <= high
        and retained(model, ("enc",))
    ]


def _kept_share(models: Sequence[StudyModel], heads: Sequence[Head]) -> float:
    """How many of the heads these models keep, on average over settings and their seeds."""
    stays = _how_often_kept(models)
    return mean([stays.get(head, 0.0) for head in heads])


def _how_often_kept(models: Sequence[StudyModel]) -> dict[Head, float]:
    """In what share of the settings a head is kept, a setting counting once for all its seeds."""
    groups = by_setting(models)
    stays: dict[Head, float] = {}
    for group in groups:
        for model in group:
            for head in model.heads.heads(("enc",)):
                stays[head] = stays.get(head, 0.0) + 1 / (len(groups) * len(group))
    return stays


def _as_many_by_chance(
    case: Case, models: Sequence[StudyModel], special: set[Head]
) -> tuple[float, float]:
    """How likely heads with a function stay as often by chance, and how many stay on average.

    Which heads have a function is shuffled within each layer, the same way for all models: that
    some layers keep more heads than others is then no evidence.
    """
    layers = [case.full.layer("enc", i) for i in range(len(case.full.heads.layers["enc"]))]
    layers = [heads for heads in layers if heads]
    exact = torch.float64  # sums of thirds in another order are still ties
    marks = [torch.tensor([head in special for head in heads], dtype=exact) for heads in layers]
    kept = _how_often_kept(models)
    stays = [torch.tensor([kept.get(head, 0.0) for head in heads], dtype=exact) for heads in layers]

    def share(marked: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([m @ s for m, s in zip(marked, stays, strict=True)]).sum(0)

    drawn = share(shuffled_within_layers(marks))
    as_many = int((drawn >= share(marks) - 1e-6).sum())
    return (as_many + 1) / (DRAWS + 1), float(drawn.mean()) / len(special)


def _function_names(model: StudyModel) -> set[str]:
    """Functions of a model's encoder heads: offsets, relations, rare words."""
    heads = model.heads.heads(("enc",))
    return {function.relation for head in heads for function in functions_of(model, head)}


def _drifts(full: StudyModel, pruned: StudyModel) -> list[tuple[str, str]]:
    """(head, function) for each function that has moved to a head that remains."""
    assert full.roles is not None
    remaining = pruned.heads.heads(("enc",))
    gone = [head for head in full.heads.heads(("enc",)) if head not in set(remaining)]
    orphans = {str(function) for head in gone for function in functions_of(full, head)}
    drifted = []
    for head in remaining:
        had = {str(function) for function in functions_of(full, head)}
        for function in functions_of(pruned, head):
            of_full = full.roles.heads.get(head)
            before = None if of_full is None else of_full.score(function.kind, function.name)
            rose = before is not None and function.value >= before + SCORE_RISE
            if str(function) in orphans - had and rose:
                drifted.append((str(head), str(function)))
    return drifted
