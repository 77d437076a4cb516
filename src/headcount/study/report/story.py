"""The findings in a few sentences, and for each function a sentence in which it is seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from headcount.data.words import MARK
from headcount.heads import SITE_NAMES, SITES
from headcount.role import kinds_at
from headcount.role.head_roles import Example
from headcount.study.cases import (
    Case,
    by_setting,
    cases_of,
    first_seeds,
    functions_of,
    mean_heads,
    nearest_heads,
    performers,
)
from headcount.study.claims.amounts import bleu_difference, mean, nearest
from headcount.study.claims.verdict import (
    FAILS,
    HOLDS,
    MIXED,
    UNDECIDED,
    UNTESTABLE,
    Verdict,
    percent,
)
from headcount.study.recipe import PRUNED
from headcount.study.results import StudyModel, StudyResults


def headline(results: StudyResults) -> str:
    """One sentence: what the heads do, and what pruning costs.

    Of a study with several models it is about the first; the others have a paragraph each.
    """
    cases = cases_of(results)
    clauses = []
    if cases:
        case = cases[0]
        name = "of the model" if len(cases) == 1 else f"of the {case.label} model"
        if case.full.roles is not None:
            clauses.append(_functions_clause(case.full, name))
        pruned = _pruned_clause(case)
        clauses += [pruned] if pruned else []
    if not clauses and cases:
        return f"{_heads_line(cases[0].full)} They have not been analysed yet."
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def story(results: StudyResults) -> list[tuple[str, list[str]]]:
    """What was found: for each full model its name and some sentences."""
    return [(case.label, _case_lines(case)) for case in cases_of(results)]


def commands_left(results: StudyResults, explored: bool) -> list[tuple[str, str]]:
    """What has not been measured for a single run yet, and the command for it."""
    if results.is_study:
        return []
    model, run = results.models[0], results.folder.name
    pair = results.pairs[0]
    left = []
    if not model.column("lrp"):
        command = f"headcount rank {run} --src TEST.{pair.source} --ref TEST.{pair.target}"
        left.append(("How much each head matters:", command))
    if model.roles is None:
        left.append(("What each head does:", f"headcount roles {run} --src TEST.{pair.source}"))
    if model.pruning is None:
        command = f"headcount prune {run} --train CORPUS --keep 12 --out PRUNED"
        left.append(("Whether it can do with fewer heads:", command))
    if not explored:
        command = f"headcount report {run} --src TEST.{pair.source}"
        left.append(("Attention on sentences, on this page:", command))
    return left


def seeds_line(results: StudyResults) -> str:
    """How many seeds each pruning has: `3 of en-fr-enc-keep-10-exact; 1 of each other pruning`."""
    groups = by_setting(model for model in results.models if model.kind == PRUNED)
    counts = [len(group) for group in groups]
    if len(set(counts)) <= 1:
        return f"{counts[0]} of each pruning" if counts else ""
    fewest = min(counts)
    repeated: dict[int, list[str]] = {}
    for group in groups:
        if len(group) > fewest:
            repeated.setdefault(len(group), []).append(group[0].id)
    parts = [f"{count} of {', '.join(names)}" for count, names in repeated.items()]
    return f"{'; '.join(parts)}; {fewest} of each other pruning"


def claims_line(verdicts: Sequence[Verdict]) -> str:
    """How many claims hold."""
    parts = _counts(verdicts)
    number = "one finding" if len(verdicts) == 1 else f"{len(verdicts)} findings"
    return f"Of {number} of the paper, {', '.join(parts[:-1])} and {parts[-1]}."


def findings_seen(verdicts: Sequence[Verdict]) -> list[tuple[str, str, list[Verdict]]]:
    """Which of the paper's findings are seen and which not: verdict, words for it, findings."""
    words = {
        HOLDS: "Seen here",
        MIXED: "Seen in some of the models",
        UNDECIDED: "Undecided",
        FAILS: "Not seen",
    }
    groups = [(v, told, [x for x in verdicts if x.verdict == v]) for v, told in words.items()]
    return [group for group in groups if group[2]]


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    counts = Counter(verdict.verdict for verdict in verdicts)
    one = {verdict for verdict, count in counts.items() if count == 1}
    parts = [f"{counts[HOLDS]} {'holds' if HOLDS in one else 'hold'} here"]
    if counts[MIXED]:
        parts.append(
            f"{counts[MIXED]} {'holds' if MIXED in one else 'hold'} for some of the models"
        )
    parts.append(f"{counts[FAILS]} {'does' if FAILS in one else 'do'} not")
    if counts[UNDECIDED]:
        parts.append(f"{counts[UNDECIDED]} {'is' if UNDECIDED in one else 'are'} undecided")
    if counts[UNTESTABLE]:
        parts.append(f"{counts[UNTESTABLE]} cannot be tested")
    return parts


def _case_lines(case: Case) -> list[str]:
    lines = [_full_line(case)]
    if case.full.roles is not None:
        clause = _functions_clause(case.full, "of the model")
        lines.append(f"{clause[0].upper()}{clause[1:]}.")
    relevant = _relevance_line(case.full)
    lines += [relevant] if relevant else []
    pruned = _pruned_clause(case)
    lines += [f"{pruned[0].upper()}{pruned[1:]}."] if pruned else []
    return lines


def _full_line(case: Case) -> str:
    line = _heads_line(case.full)
    scores = case.full.scores
    if scores.bleu is None:
        return line
    spread = "" if scores.bleu_interval is None else f" ± {scores.bleu_interval:.1f}"
    where = "" if scores.lines is None else f" on {scores.lines} test sentences"
    return f"{line} It reaches BLEU {scores.bleu:.1f}{spread}{where}."


def _heads_line(model: StudyModel) -> str:
    counts = [f"{model.heads.count(site)} of {SITE_NAMES[site]}" for site in SITES]
    return f"The model's heads: {', '.join(counts[:-1])} and {counts[-1]}."


def _functions_clause(model: StudyModel, name: str) -> str:
    heads = model.heads.heads(("enc",))
    functions = [functions_of(model, head) for head in heads]
    kinds = kinds_at("enc")
    counts = {kind: sum(any(f.kind == kind for f in own) for own in functions) for kind in kinds}
    seen = [f"{count} {kind}" for kind, count in counts.items() if count]
    special = sum(bool(own) for own in functions)
    if not special:
        return f"none of the {len(heads)} encoder heads {name} has a function that the paper names"
    verb = "has" if special == 1 else "have"
    return (
        f"{special} of the {len(heads)} encoder heads {name} {verb} a function ({', '.join(seen)})"
    )


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


ANY_FIFTH = (1 / 5, 0.0, 1.0)
"""The pruning of the headline: the one nearest to a fifth of the heads, however near that is."""


def _pruned_clause(case: Case) -> str | None:
    scored = [model for model in case.encoder_learned if model.bleu is not None]
    if case.full.bleu is None or not scored:
        return None
    models = nearest(scored, ("enc",), case.encoder_heads, ANY_FIFTH)
    difference = bleu_difference(models, [case.full])
    bleu = mean([model.bleu or 0.0 for model in models])
    return (
        f"with {mean_heads(models, ('enc',)):g} of {case.encoder_heads} left it has BLEU"
        f" {bleu:.1f} instead of {case.full.bleu:.1f}"
        f" ({difference.value:+.1f}, 95 % interval {difference.low:+.1f} to {difference.high:+.1f})"
    )


CHARACTER, GAP = 7.4, 14.0
"""Pixels: how wide a letter is on average, and the space between two words."""
STEP, LOOP = 15.0, 16.0
"""Pixels: how much higher an arc is for each word that it spans, and an arc to the word itself."""
HIGHEST = 110.0


@dataclass(frozen=True)
class Card:
    """One function: the head that performs it best, what it does, and how that looks."""

    kind: str
    head: str
    title: str
    sentence: str
    also: tuple[str, ...]
    picture: Markup | None
    seen: str


@dataclass(frozen=True)
class Group:
    """The functions of one model's heads; where there are none, what comes nearest."""

    label: str
    cards: tuple[Card, ...]
    nearest: str


def cards_of(results: StudyResults) -> list[Group]:
    """A group for each model whose heads were analysed."""
    cases = [case for case in first_seeds(cases_of(results)) if case.full.roles is not None]
    return [Group(case.label, tuple(_cards(case)), _nearest(case)) for case in cases]


def _cards(case: Case) -> list[Card]:
    """The best head for each function, in the order of the registry."""
    cards = []
    for performer in performers(case.full.roles) if case.full.roles else ():
        example = performer.role.seen_best
        cards.append(
            Card(
                kind=performer.role.kind,
                head=str(performer.head),
                title=str(performer.role),
                sentence=performer.role.sentence,
                also=tuple(map(str, performer.others)),
                picture=None if example is None else arcs(example, str(performer.head)),
                seen="" if example is None else _seen(example),
            )
        )
    return cards


def _nearest(case: Case) -> str:
    """Kinds of functions that no head has, and the head that comes nearest to each."""
    nearest = nearest_heads(case.full.roles) if case.full.roles else {}
    if not nearest:
        return ""
    kinds = " or ".join(nearest)
    return f"No encoder head is a {kinds} head. The nearest: {'; '.join(nearest.values())}."


def arcs(example: Example, head: str) -> Markup:
    """A sentence with an arc from each token to the token that the head looks at most.

    Tokens that the function is not about, such as all but the verbs, have a faint one.
    """
    tokens = [_plain(token, place) for place, token in enumerate(example.tokens)]
    centres, x = [], GAP / 2
    for token in tokens:
        width = CHARACTER * max(1, len(token))
        centres.append(x + width / 2)
        x += width + GAP
    pairs = [(i, j) for i, j in enumerate(example.argmax) if i < len(tokens) and j < len(tokens)]
    heights = [_height(i, j) for i, j in pairs]
    top = max(heights, default=0.0) + 8
    shown = set(example.queries) or set(range(len(tokens)))
    parts = [
        _arc(centres[i], centres[j], top, height, "hit" if i in shown else "aside")
        for (i, j), height in zip(pairs, heights, strict=True)
    ]
    parts += [
        Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>').format(c, top + 16, t)
        for c, t in zip(centres, tokens, strict=True)
    ]
    told = "; ".join(f"{tokens[i]} to {tokens[j]}" for i, j in pairs)
    opening = Markup('<svg width="{:.0f}" height="{:.0f}" viewBox="0 0 {:.0f} {:.0f}" role="img" '
                     'aria-label="{}">')  # fmt: skip
    size = (x, top + 24)
    label = f"Where {head} looks: {told}"
    return opening.format(*size, *size, label) + Markup("").join(parts) + Markup("</svg>")


def _arc(start: float, end: float, base: float, height: float, kind: str) -> Markup:
    """A curve that leaves the query and ends in a small triangle above the key."""
    if start == end:
        curve = f"M{start - 6:.1f} {base:.1f} C{start - 9:.1f} {base - height:.1f}"
        curve += f" {start + 9:.1f} {base - height:.1f} {start + 6:.1f} {base - 2:.1f}"
        tip = start + 6
    else:
        aside = 3 if end > start else -3
        begin, tip = start + aside, end - aside
        curve = f"M{begin:.1f} {base:.1f} C{begin:.1f} {base - 1.3 * height:.1f}"
        curve += f" {tip:.1f} {base - 1.3 * height:.1f} {tip:.1f} {base - 3:.1f}"
    point = f"M{tip - 3:.1f} {base - 5:.1f} L{tip + 3:.1f} {base - 5:.1f} L{tip:.1f} {base:.1f} Z"
    drawn = Markup('<path class="arc {}" d="{}"/><path class="tip {}" d="{}"/>')
    return drawn.format(kind, curve, kind, point)


def _height(query: int, key: int) -> float:
    return LOOP if query == key else min(HIGHEST, STEP * (1 + abs(query - key)))


def _seen(example: Example) -> str:
    return (
        f"“{example.sentence}” {example.hits} of {example.instances} times here; mean largest"
        f" weight {example.confidence:.2f}."
    )


def _plain(token: str, place: int) -> str:
    """A token as readers see it; a piece inside a word begins with a dot."""
    if token.startswith(MARK):
        return token.removeprefix(MARK) or MARK
    return f"·{token}" if place and token[:1].isalnum() else token
