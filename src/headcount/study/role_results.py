"""`roles.json` read back: the functions of every head, Table 1, and what they were measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.files import read_json
from headcount.heads import Head
from headcount.roles.criteria import DIAGONAL, POSITIONAL, RARE, SYNTACTIC
from headcount.roles.relations import DIRECTIONS, arrow
from headcount.roles.uncertainty import Interval

FUNCTIONS = (POSITIONAL, SYNTACTIC, RARE)
"""The paper's functions of encoder heads, in the order in which figures show them."""

# The ends of a relation, short enough for a cell of a figure.
_SHORT = {"adj.m.": "adj", "adv.m.": "adv", "noun": "n"}


@dataclass(frozen=True)
class Function:
    """One function that a head performs (a role of `headcount roles`).

    `name` says which: `-1` of the positional ones, `nsubj v → s` of the syntactic ones.
    """

    kind: str
    name: str
    score: float
    baseline: float

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind in (POSITIONAL, DIAGONAL) else self.name

    @property
    def label(self) -> str:
        """A few characters for a cell: `-1`, `v→s`, `rare`."""
        if self.kind == RARE:
            return "rare"
        if self.kind in (POSITIONAL, DIAGONAL):
            return self.name.replace("-", "−")
        return short_arrow(self.name.split(" ", 1)[-1])

    @property
    def relation(self) -> str:
        """What a syntactic function is about: `nsubj`; the whole name of other functions."""
        return self.name.split(" ", 1)[0] if self.kind == SYNTACTIC else str(self)


@dataclass(frozen=True)
class HeadRoles:
    """What was measured of one head.

    `offsets[offset]`: share of queries; `relations[relation, direction]`: accuracy; `rare`: shares
    of the rarest and of the two rarest tokens.
    """

    head: Head
    confidence: float | None
    functions: tuple[Function, ...]
    offsets: Mapping[int, float]
    relations: Mapping[tuple[str, str], float]
    rare: tuple[float, float] | None

    def score(self, function: Function) -> float | None:
        """How well this head performs a function that it or another head was found to have."""
        if function.kind == POSITIONAL:
            return self.offsets.get(int(function.name))
        if function.kind == RARE:
            return None if self.rare is None else self.rare[1]
        return self.relations.get((function.relation, direction_of(function.name)))


@dataclass(frozen=True)
class RelationLine:
    """One line of Table 1."""

    relation: str
    direction: str
    arrow: str
    instances: int
    best_head: Head | None
    accuracy: Interval
    baseline: Interval
    margin: Interval


@dataclass(frozen=True)
class RolesFound:
    """All that `headcount roles` wrote."""

    heads: Mapping[Head, HeadRoles]
    relations: tuple[RelationLine, ...]
    offsets: Mapping[str, Mapping[int, int]]
    persons: Mapping[str, float | int | None]
    rare: Mapping[str, float | int | None]
    data: Mapping[str, Any]
    criteria: Mapping[str, Any]

    def functions(self, head: Head) -> tuple[Function, ...]:
        """The functions of a head; none where it was not analysed."""
        return self.heads[head].functions if head in self.heads else ()


def short_arrow(arrow: str) -> str:
    """`noun → adj.m.` as `n→adj`."""
    return "→".join(_SHORT.get(end, end) for end in arrow.split(" → "))


def direction_of(name: str) -> str:
    """The direction that a syntactic function's name tells: `nsubj v → s` goes to the dependent."""
    relation, shown = name.split(" ", 1)
    for direction in DIRECTIONS:
        if arrow(relation, direction) == shown:
            return direction.name
    raise ValueError(f"'{name}' names no direction of {relation}")


def read_roles(path: Path) -> RolesFound:
    """Read `roles.json`."""
    stored = read_json(path)
    try:
        heads = [_head(given) for given in stored["heads"]]
        return RolesFound(
            heads={found.head: found for found in heads},
            relations=tuple(_line(given) for given in stored["relations"]),
            offsets={
                relation: {int(offset): int(count) for offset, count in counts.items()}
                for relation, counts in stored["offsets"].items()
            },
            persons=stored["persons"],
            rare=stored["rare_words"],
            data=stored["data"],
            criteria=stored["criteria"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is not what `headcount roles` writes ({error!r}).", "Run it again."
        ) from error


def _head(given: Mapping[str, Any]) -> HeadRoles:
    rare = given.get("rare_words")
    shares = None
    if rare is not None and rare["two_rarest"]["value"] is not None:
        shares = float(rare["rarest"]["value"]), float(rare["two_rarest"]["value"])
    return HeadRoles(
        head=Head.parse(given["head"]),
        confidence=given["confidence"],
        functions=tuple(
            Function(str(r["role"]), str(r["name"]), float(r["score"]), float(r["baseline"]))
            for r in given["roles"]
        ),
        offsets={int(o["offset"]): o["share"] for o in given["offsets"] if o["share"] is not None},
        relations={
            (str(r["relation"]), str(r["direction"])): float(r["accuracy"])
            for r in given.get("relations", ())
            if r["accuracy"] is not None
        },
        rare=shares,
    )


def _line(given: Mapping[str, Any]) -> RelationLine:
    def interval(name: str) -> Interval:
        return Interval(given[name], given[f"{name}_low"], given[f"{name}_high"])

    best = given["best_head"]
    return RelationLine(
        relation=str(given["relation"]),
        direction=str(given["direction"]),
        arrow=str(given["arrow"]),
        instances=int(given["instances"]),
        best_head=None if best is None else Head.parse(best),
        accuracy=interval("accuracy"),
        baseline=interval("baseline"),
        margin=interval("margin"),
    )
