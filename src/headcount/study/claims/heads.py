"""Claims about the full model: which heads matter and what they do (Sec. 4 and 5)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.ranking.agreement import comparisons, spearman
from headcount.role import POSITIONAL, RARE_WORDS
from headcount.role.head_roles import BestHead
from headcount.role.rare_words import RAREST, TWO_RAREST
from headcount.role.relations import PAPER_RELATIONS
from headcount.role.syntactic import MARGIN
from headcount.study.cases import Case
from headcount.study.claims.verdict import (
    DRAWS,
    Claim,
    Finding,
    decide,
    decide_against_chance,
    percent,
    shuffled_within_layers,
    undecided,
    under_both_readings,
    untestable,
)
from headcount.study.results import StudyModel

TOP_SHARE = 0.25
RELEVANCE_OF_TOP = 0.5
AGREEMENT = 0.3
CONFIDENT = 0.8
BETTER_THAN_OTHERS = 0.75
LEAST_INSTANCES = 30
LEAST_HEADS = 4

NOT_RANKED = "Relevance was not measured (headcount rank)."
NO_ROLES = "Functions of heads were not looked for (headcount roles)."


def few_heads_carry_relevance(case: Case, column: str) -> Finding:
    """Sec. 4: LRP ranks a small number of heads as much more important than all others."""
    layers = _encoder_layers(case.full, column)
    if not layers:
        return untestable(NOT_RANKED)
    wide = {layer: values for layer, values in layers.items() if len(values) >= LEAST_HEADS}
    if not wide:
        return untestable(f"No encoder layer has {LEAST_HEADS} heads to compare.")
    shares = {layer: _share_of_top(list(values.values())) for layer, values in wide.items()}
    lowest = min(shares, key=lambda layer: shares[layer])
    enough = sum(share >= RELEVANCE_OF_TOP for share in shares.values())
    return decide(
        enough == len(shares),
        f"The top quarter of heads has {percent(shares[lowest])} to"
        f" {percent(max(shares.values()))} of a layer's relevance; at least half in {enough} of"
        f" {len(shares)} layers.",
        layers=len(shares),
        layers_above_half=enough,
        lowest_share=shares[lowest],
        lowest_layer=lowest,
        mean_share=sum(shares.values()) / len(shares),
    )


def relevance_agrees_with_confidence(case: Case, column: str) -> Finding:
    """Sec. 4: relevance "agrees to a reasonable extent" with confidence."""
    relevance, confidence = case.full.column(column), case.full.column("confidence")
    layers = []
    for layer in range(len(case.full.heads.layers["enc"])):
        heads = [h for h in case.full.layer("enc", layer) if h in relevance and h in confidence]
        if len(heads) >= LEAST_HEADS:
            layers.append(torch.tensor([[c[h] for h in heads] for c in (relevance, confidence)]))
    if not layers:
        return untestable("No encoder layer has both relevance and confidence of enough heads.")
    correlation = float(_mean_correlation([(pair[0], pair[1]) for pair in layers]))
    shuffles = shuffled_within_layers([pair[1] for pair in layers])
    shuffled = [
        (pair[0].expand(DRAWS, -1), values) for pair, values in zip(layers, shuffles, strict=True)
    ]
    as_high = int((_mean_correlation(shuffled) >= correlation - 1e-9).sum())
    return decide_against_chance(
        correlation >= AGREEMENT,
        (as_high + 1) / (DRAWS + 1),
        DRAWS,
        f"Spearman's correlation within layers is {correlation:.2f} on average",
        "a model with more heads per layer could decide it",
        spearman=correlation,
        layers=len(layers),
    )


def positional_heads_are_confident(case: Case) -> Finding:
    """Sec. 5.1: the average maximum weight exceeds 0.8 for every positional head."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    positional = _positional(case.full)
    confidence = case.full.column("confidence")
    values = {head: confidence[head] for head in positional if head in confidence}
    if not values:
        return untestable("No encoder head is positional.")
    lowest = min(values, key=lambda head: values[head])
    above = sum(value > CONFIDENT for value in values.values())
    return decide(
        above == len(values),
        f"{above} of {len(values)} positional heads have a mean maximum weight over {CONFIDENT};"
        f" the lowest is {values[lowest]:.2f} ({lowest}).",
        positional_heads=len(values),
        above=above,
        lowest=values[lowest],
        lowest_head=str(lowest),
    )


def positional_heads_are_relevant(case: Case, column: str) -> Finding:
    """Sec. 5.1: positional heads correspond to a large extent to the most important heads."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    layers = _encoder_layers(case.full, column)
    if not layers:
        return untestable(NOT_RANKED)
    positional = set(_positional(case.full))
    values = [torch.tensor(list(layer.values())) for layer in layers.values()]
    marks = [torch.tensor([float(h in positional) for h in layer]) for layer in layers.values()]
    pairs = int(sum(mark.sum() * (1 - mark).sum() for mark in marks))
    if not pairs:
        why = "every head of their layers is one" if positional else "no encoder head is positional"
        return untestable(f"Positional heads cannot be compared with others: {why}.")
    share = float(_share_won(values, marks)) / pairs
    drawn = _share_won(values, shuffled_within_layers(marks)) / pairs
    as_high = int((drawn >= share - 1e-9).sum())
    return decide_against_chance(
        share >= BETTER_THAN_OTHERS,
        (as_high + 1) / (DRAWS + 1),
        DRAWS,
        f"A positional head is more relevant than another head of its layer in {percent(share)}"
        f" of {pairs} comparisons",
        "a model with more positional heads could decide it",
        positional_heads=len(positional),
        comparisons=pairs,
        share_more_relevant=share,
    )


def syntactic_heads_beat_baseline(case: Case) -> Finding:
    """Sec. 5.2: some heads find dependents or heads better than the positional baseline does."""
    if case.full.roles is None:
        return untestable(NO_ROLES)
    best: dict[str, BestHead] = {}
    for line in case.full.roles.relations:
        known = line.score.value is not None and line.baseline.value is not None
        if line.relation in PAPER_RELATIONS and known and line.instances >= LEAST_INSTANCES:
            before = best.get(line.relation)
            if before is None or _above(line) > _above(before):
                best[line.relation] = line
    if not best:
        return untestable(f"No relation has {LEAST_INSTANCES} instances in the analysed sentences.")
    numbers: dict[str, float | int | str | None] = {"relations": len(best)}
    parts = []
    for relation, line in best.items():
        numbers[f"{relation}_accuracy"] = line.score.value
        numbers[f"{relation}_baseline"] = line.baseline.value
        numbers[f"{relation}_head"] = str(line.head)
        numbers[f"{relation}_margin_low"] = line.margin.low
        parts.append(
            f"{relation} {percent(line.score.value)} against {percent(line.baseline.value)}"
        )
    reason = f"Best head against baseline: {', '.join(parts)}."
    unsure = [relation for relation, line in best.items() if _is_unsure(line)]
    if unsure and all(_above(line) >= MARGIN - 1e-9 or _is_unsure(line) for line in best.values()):
        return undecided(
            f"{reason} The 95 % interval of the margin includes {100 * MARGIN:.0f} points for"
            f" {', '.join(unsure)}; more sentences could decide it.",
            **numbers,
        )
    return decide(all(_above(line) >= MARGIN - 1e-9 for line in best.values()), reason, **numbers)


def rare_words_head_leads_first_layer(case: Case, column: str) -> Finding:
    """Sec. 5.3: the most important head of the first layer points to the least frequent tokens."""
    full = case.full
    if full.roles is None:
        return untestable(NO_ROLES)
    rare = full.roles.best_head(RARE_WORDS.name, TWO_RAREST)
    if rare is None or not rare.instances:
        return untestable("No token frequencies, or no sentence with a rare token.")
    layers = _encoder_layers(full, column)
    if 0 not in layers:
        return untestable(NOT_RANKED)
    relevance = layers[0]
    leader = max(relevance, key=lambda head: relevance[head])
    roles = full.roles.heads.get(leader)
    share = None if roles is None else roles.score(RARE_WORDS.name, TWO_RAREST)
    if roles is None or share is None:
        return untestable(f"{leader} was not analysed.")
    return decide(
        roles.has(RARE_WORDS.name),
        f"The most relevant head of the first layer, {leader} ({percent(relevance[leader])} of its"
        f" relevance), points at one of the two rarest tokens in {percent(share)} of cases;"
        f" by chance {percent(rare.baseline.value)}.",
        head=str(leader),
        relevance=relevance[leader],
        rarest_share=roles.score(RARE_WORDS.name, RAREST),
        two_rarest_share=share,
        chance_two_rarest=rare.baseline.value,
    )


HEAD_CLAIMS = (
    Claim(
        "few-heads-carry-relevance",
        "Sec. 4",
        "In each encoder layer a few heads carry most of the relevance.",
        "In every encoder layer the most relevant quarter of the heads (rounded up) has at least"
        " half of the layer's relevance.",
        under_both_readings(few_heads_carry_relevance),
        short="few heads carry most of the relevance",
    ),
    Claim(
        "relevance-agrees-with-confidence",
        "Sec. 4",
        "How relevant a head is agrees with how confident it is.",
        "Spearman's correlation of relevance and confidence within encoder layers is at least 0.3"
        " on average, and at most 5 % of random shufflings within layers reach it.",
        under_both_readings(relevance_agrees_with_confidence),
        short="relevance agrees with confidence",
    ),
    Claim(
        "positional-heads-confident",
        "Sec. 5.1",
        "Positional heads are sure of where they look.",
        "Every positional encoder head has a mean maximum attention weight over 0.8.",
        positional_heads_are_confident,
        short="positional heads are confident",
    ),
    Claim(
        "positional-heads-relevant",
        "Sec. 5.1",
        "Positional heads are among the most relevant heads.",
        "Compared with every head of its layer that is not positional, a positional head is the"
        " more relevant one in at least 75 % of cases, and at most 5 % of random shufflings within"
        " layers reach that.",
        under_both_readings(positional_heads_are_relevant),
        short="positional heads matter most",
    ),
    Claim(
        "syntactic-heads-beat-baseline",
        "Sec. 5.2",
        "Syntactic heads find relations better than looking at the most frequent position does.",
        "For each of nsubj, obj, amod and advmod with at least 30 instances, the best head is at"
        " least 10 points above the positional baseline in one direction.",
        syntactic_heads_beat_baseline,
        short="syntactic heads for all four relations",
    ),
    Claim(
        "rare-words-head-leads-first-layer",
        "Sec. 5.3",
        "One head of the first layer points at rare words and is the most relevant head there.",
        "The most relevant head of the first encoder layer has the rare-words function.",
        under_both_readings(rare_words_head_leads_first_layer),
        short="a rare-words head leads the first layer",
    ),
)


def _encoder_layers(model: StudyModel, column: str) -> dict[int, dict[Head, float]]:
    """The values of the encoder's heads, layer by layer; layers without values are left out."""
    values = model.column(column)
    layers = {
        layer: {head: values[head] for head in model.layer("enc", layer) if head in values}
        for layer in range(len(model.heads.layers["enc"]))
    }
    return {layer: found for layer, found in layers.items() if found}


def _share_of_top(values: list[float]) -> float:
    """The share of the layer's sum that its top heads have; values keep their signs."""
    top = sorted(values, reverse=True)[: math.ceil(TOP_SHARE * len(values))]
    total = sum(values)
    return sum(top) / total if total else 0.0


def _mean_correlation(pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean over layers of correlations of `[..., heads]` with `[..., heads]`; constants give 0."""
    correlations = [spearman(comparisons(a), comparisons(b)).nan_to_num() for a, b in pairs]
    return torch.stack(correlations).mean(0)


def _share_won(values: list[Tensor], marks: list[Tensor]) -> Tensor:
    """In how many pairs a marked head has the larger value, `[...]`; a tie counts half.

    values: `[heads]` of each layer; marks: `[..., heads]`, 1 for the heads in question
    """
    won: Tensor = torch.zeros(())
    for value, mark in zip(values, marks, strict=True):
        larger = (value[:, None] > value).float() + 0.5 * (value[:, None] == value).float()
        won = won + torch.einsum("...i,ij,...j->...", mark, larger, 1 - mark)
    return won


def _positional(model: StudyModel) -> list[Head]:
    roles = model.roles
    if roles is None:
        return []
    return [
        head
        for head in model.heads.heads(("enc",))
        if any(role.kind == POSITIONAL.name for role in roles.of(head))
    ]


def _above(line: BestHead) -> float:
    return (line.score.value or 0.0) - (line.baseline.value or 0.0)


def _is_unsure(line: BestHead) -> bool:
    low, high = line.margin.low, line.margin.high
    return low is not None and high is not None and low < MARGIN <= high
