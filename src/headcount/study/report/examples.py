"""What heads do: for each function the best head, and a sentence in which it is seen best."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from headcount.data.words import MARK
from headcount.role.head_roles import Example
from headcount.study.cases import Case, cases_of, first_seeds
from headcount.study.performers import nearest_heads, performers
from headcount.study.results import StudyResults

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
