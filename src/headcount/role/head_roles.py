"""The roles of one head: what it must reach, its scores, and where it is seen best (Sec. 5).

Every type here writes itself to JSON and reads itself back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from headcount.bootstrap import Interval
from headcount.errors import UserError
from headcount.heads import Head
from headcount.role import ROLES as KINDS
from headcount.role import SYNTACTIC, positional, rare_words, syntactic
from headcount.role.syntactic import relation_and_direction


@dataclass(frozen=True)
class Criteria:
    """The thresholds.

    threshold       share of one offset that makes a head positional (or diagonal, for `cross`)
    margin          how far a syntactic head is above the positional baseline
    relative        the margin is a share of the baseline, not points
    rare_threshold  share of queries that a rare-words head sends to one of the two rarest tokens
    rare_ratio      and how many times chance that is: in a sentence of three tokens, chance is 2/3
    least           instances that a syntactic role needs; by default 1, and 30 when all relations
                    are analysed: some of those have a handful of instances
    frequent        only sentences with a token that is not among this many most frequent ones count
    """

    threshold: float = positional.THRESHOLD
    margin: float = syntactic.MARGIN
    relative: bool = False
    rare_threshold: float = rare_words.THRESHOLD
    rare_ratio: float = rare_words.RATIO
    frequent: int = rare_words.FREQUENT
    least: int | None = None

    def __post_init__(self) -> None:
        for name in ("threshold", "rare_threshold"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise UserError(
                    f"A {name} of {value} is not a share.", "Choose one above 0 and up to 1."
                )
        for name in ("margin", "rare_ratio"):
            value = getattr(self, name)
            if not value >= 0:
                raise UserError(f"A {name} of {value} is negative.", "Choose 0 or more.")
        if self.frequent < 0:
            raise UserError(
                f"{self.frequent} frequent tokens are not possible.", "Choose 0 or more."
            )

    def to_json(self) -> dict[str, Any]:
        """All thresholds by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Criteria:
        """The thresholds as `to_json` wrote them; unknown ones are left out."""
        names = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in stored.items() if name in names})


@dataclass(frozen=True)
class Example:
    """The sentence in which a head is best seen at its role.

    tokens: the source tokens; target_tokens: those of the translation, for `dec` and `cross`
    argmax: for each query token, the key token that the head looks at most
    hits, instances: how often it does what the role says, and how often it could
    queries: the query tokens that the role is about; empty where it is about all of them
    confidence: the mean of its largest weights in this sentence
    """

    sentence: str
    tokens: tuple[str, ...]
    argmax: tuple[int, ...]
    hits: int
    instances: int
    confidence: float
    target_tokens: tuple[str, ...] | None = None
    queries: tuple[int, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Example:
        """The example as `to_json` wrote it."""
        targets = stored.get("target_tokens")
        return cls(
            sentence=str(stored["sentence"]),
            tokens=tuple(map(str, stored["tokens"])),
            argmax=tuple(map(int, stored["argmax"])),
            hits=int(stored["hits"]),
            instances=int(stored["instances"]),
            confidence=float(stored["confidence"]),
            target_tokens=None if targets is None else tuple(map(str, targets)),
            queries=tuple(map(int, stored.get("queries", ()))),
        )


@dataclass(frozen=True)
class Role:
    """A role that a head has: its score, the baseline, and the number of instances.

    `kind` is the name of a registered role; `name` says which form of it: `-1` of the positional
    role, `nsubj v → s` of the syntactic one.
    """

    kind: str
    name: str
    score: Interval
    baseline: float
    instances: int
    margin: Interval
    seen_best: Example | None = None

    @property
    def value(self) -> float:
        """The score itself."""
        return self.score.value or 0.0

    def __str__(self) -> str:
        return KINDS[self.kind].title(self.name) if self.kind in KINDS else self.name

    @property
    def label(self) -> str:
        """A few characters for a cell: `−1`, `v→s`, `rare`."""
        return KINDS[self.kind].label(self.name) if self.kind in KINDS else self.name

    @property
    def relation(self) -> str:
        """What a syntactic role is about: `nsubj`; the whole name of other roles."""
        return self.name.split(" ", 1)[0] if self.kind == SYNTACTIC.name else str(self)

    @property
    def sentence(self) -> str:
        """What the head does and how often, to follow its name."""
        if self.kind not in KINDS:
            return f"{self} ({percent(self.value)} %)"
        kind = KINDS[self.kind]
        return (
            f"{kind.sentence(self.name)} in {percent(self.value)} % of cases"
            f" ({kind.baseline_is}: {percent(self.baseline)} %)"
        )

    def to_json(self) -> dict[str, Any]:
        """The role as JSON values."""
        example = {} if self.seen_best is None else {"seen_best": self.seen_best.to_json()}
        return {
            "role": self.kind,
            "name": self.name,
            **_flat("score", self.score),
            "baseline": self.baseline,
            **_flat("margin", self.margin),
            "instances": self.instances,
            **example,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Role:
        """The role as `to_json` wrote it."""
        example = stored.get("seen_best")
        return cls(
            kind=str(stored["role"]),
            name=str(stored["name"]),
            score=_interval(stored, "score"),
            baseline=float(stored["baseline"]),
            instances=int(stored["instances"]),
            margin=_interval(stored, "margin"),
            seen_best=None if example is None else Example.from_json(example),
        )


@dataclass
class HeadRoles:
    """What was measured for one head, and the roles that it has.

    `scores[kind][name]` is its score under one form of a role, whether it has the role or not.
    """

    head: Head
    confidence: float | None
    roles: list[Role] = field(default_factory=list)
    scores: dict[str, dict[str, Interval]] = field(default_factory=dict)

    def score(self, kind: str, name: str) -> float | None:
        """The score under one form of a role; None where it was not measured."""
        score = self.scores.get(kind, {}).get(name)
        return None if score is None else score.value

    def has(self, kind: str) -> bool:
        """Whether the head has a role of this kind."""
        return any(role.kind == kind for role in self.roles)

    def cells(self) -> dict[str, Any]:
        """The head's row of the head table."""
        cells: dict[str, Any] = {"roles": "; ".join(map(str, self.roles)) or None}
        for kind, scores in self.scores.items():
            cells |= KINDS[kind].columns(scores) if kind in KINDS else {}
        return cells

    def to_json(self) -> dict[str, Any]:
        """Everything that was measured for the head."""
        return {
            "head": str(self.head),
            "confidence": self.confidence,
            "roles": [role.to_json() for role in self.roles],
            "scores": {
                kind: {name: score._asdict() for name, score in scores.items()}
                for kind, scores in self.scores.items()
            },
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> HeadRoles:
        """The head as `to_json` wrote it."""
        return cls(
            head=Head.parse(stored["head"]),
            confidence=stored["confidence"],
            roles=[Role.from_json(role) for role in stored["roles"]],
            scores={
                str(kind): {str(name): Interval(**score) for name, score in scores.items()}
                for kind, scores in stored["scores"].items()
            },
        )


@dataclass(frozen=True)
class BestHead:
    """The best head under one form of a role, and the baseline; Table 1 has one per relation."""

    kind: str
    name: str
    site: str
    instances: int
    head: Head | None
    score: Interval
    baseline: Interval
    margin: Interval

    @property
    def relation(self) -> str:
        """Of a syntactic line: `nsubj`."""
        return self.name.split(" ", 1)[0]

    @property
    def arrow(self) -> str:
        """Of a syntactic line, as Table 1 writes it: `v → s`."""
        return self.name.split(" ", 1)[-1]

    @property
    def direction(self) -> str:
        """Of a syntactic line: `head_to_dependent`, or the reverse."""
        return relation_and_direction(self.name)[1]

    def to_json(self) -> dict[str, Any]:
        """The line as JSON values."""
        return {
            "role": self.kind,
            "name": self.name,
            "site": self.site,
            "instances": self.instances,
            "head": None if self.head is None else str(self.head),
            **_flat("score", self.score),
            **_flat("baseline", self.baseline),
            **_flat("margin", self.margin),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> BestHead:
        """The line as `to_json` wrote it."""
        head = stored["head"]
        return cls(
            kind=str(stored["role"]),
            name=str(stored["name"]),
            site=str(stored["site"]),
            instances=int(stored["instances"]),
            head=None if head is None else Head.parse(head),
            score=_interval(stored, "score"),
            baseline=_interval(stored, "baseline"),
            margin=_interval(stored, "margin"),
        )


def percent(share: float | None) -> str:
    """A share as whole per cent, as in Table 1."""
    return "-" if share is None else f"{100 * share:.0f}"


def _flat(name: str, share: Interval) -> dict[str, float | None]:
    """An interval as three values: `score`, `score_low`, `score_high`."""
    return {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}


def _interval(stored: Mapping[str, Any], name: str) -> Interval:
    return Interval(stored[name], stored[f"{name}_low"], stored[f"{name}_high"])
