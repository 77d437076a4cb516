"""The roles of a run's heads, and how they are kept: `roles.json`, the head table, the offsets.

Every type here writes itself to JSON and reads itself back; nothing else knows the format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from headcount.bootstrap import Interval
from headcount.errors import UserError
from headcount.files import atomic_path, read_json, write_json, write_text
from headcount.heads import Head, HeadTable
from headcount.role.criteria import Criteria
from headcount.role.format_one import upgraded
from headcount.role.offsets import distributions_csv, draw_distributions
from headcount.role.registry import ROLES as KINDS
from headcount.role.registry import SYNTACTIC
from headcount.role.relations import PAPER_RELATIONS
from headcount.role.syntactic import relation_and_direction

FORMAT = 2
ROLES = "roles.json"
OFFSETS = "offsets"


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


@dataclass(frozen=True)
class Roles:
    """The roles of every head, the best head under each, and what they were measured on.

    data: where sentences and parses came from, and how many could be used
    offsets: for each relation, how often the dependent stands at each offset from its head
    persons: shares of first, second and third person among subjects
    facts: for each role, numbers about the data that it was counted on
    """

    heads: dict[Head, HeadRoles]
    best: list[BestHead]
    criteria: Criteria
    data: dict[str, Any]
    offsets: dict[str, dict[int, int]]
    persons: dict[str, float | int | None]
    facts: dict[str, dict[str, int]]

    def of(self, head: Head) -> list[Role]:
        """The roles of a head; none where it was not analysed."""
        return self.heads[head].roles if head in self.heads else []

    @property
    def relations(self) -> list[BestHead]:
        """Table 1: the best head for each relation and direction."""
        return [line for line in self.best if line.kind == SYNTACTIC.name]

    def best_head(self, kind: str, name: str, site: str = "enc") -> BestHead | None:
        """The best head under one form of a role, or None where it was not measured."""
        wanted = (kind, name, site)
        return next((b for b in self.best if (b.kind, b.name, b.site) == wanted), None)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "format": FORMAT,
            "data": self.data,
            "criteria": self.criteria.to_json(),
            "heads": [head.to_json() for head in self.heads.values()],
            "best": [line.to_json() for line in self.best],
            "offsets": {
                relation: {str(offset): counts[offset] for offset in sorted(counts)}
                for relation, counts in self.offsets.items()
            },
            "persons": self.persons,
            "facts": self.facts,
            "columns": list(self.columns()),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Roles:
        """The result as `to_json` wrote it, in this format or the one before it."""
        stored = upgraded(stored)
        heads = [HeadRoles.from_json(head) for head in stored["heads"]]
        return cls(
            heads={head.head: head for head in heads},
            best=[BestHead.from_json(line) for line in stored["best"]],
            criteria=Criteria.from_json(stored["criteria"]),
            data=dict(stored["data"]),
            offsets={
                str(relation): {int(offset): int(count) for offset, count in counts.items()}
                for relation, counts in stored["offsets"].items()
            },
            persons=dict(stored["persons"]),
            facts={str(kind): dict(facts) for kind, facts in stored["facts"].items()},
        )

    @classmethod
    def load(cls, path: Path) -> Roles:
        """Read `roles.json`."""
        stored = read_json(path)
        try:
            return cls.from_json(stored)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{path} is not what `headcount roles` writes ({error!r}).", "Run it again."
            ) from error

    def columns(self) -> dict[str, dict[Head, Any]]:
        """The columns of the head table."""
        columns: dict[str, dict[Head, Any]] = {}
        for head in self.heads.values():
            for name, value in head.cells().items():
                columns.setdefault(name, {})
                if value is not None:
                    columns[name][head.head] = value
        return columns

    def add_to(self, table: HeadTable, stale: Mapping[str, Any] | None = None) -> None:
        """Add the columns; heads of sites that were not analysed keep what they had.

        `stale` is an earlier result; its columns are removed where this one has no values. A
        confidence that the ranking measured stays.
        """
        sites = {head.site for head in self.heads}
        new = self.columns()
        measured = {head: head_roles.confidence for head, head_roles in self.heads.items()}
        confidence = {h: c for h, c in measured.items() if c is not None}
        new["confidence"] = confidence | table.columns.get("confidence", {})
        for name in dict.fromkeys([*(stale or {}).get("columns", []), *new]):
            old = table.columns.get(name, {})
            kept = {head: value for head, value in old.items() if head.site not in sites}
            values = kept | new.get(name, {})
            if values:
                table.add(name, values)
            else:
                table.columns.pop(name, None)

    def save(self, analysis: Path, table: HeadTable) -> None:
        """Write `roles.json`, the head table, and the offsets as CSV and SVG."""
        stale = read_json(analysis / ROLES) if (analysis / ROLES).exists() else None
        self.add_to(table, stale)
        table.save(analysis)
        if any(self.offsets.values()):
            write_text(analysis / f"{OFFSETS}.csv", distributions_csv(self.offsets))
            paper = [relation for relation in PAPER_RELATIONS if relation in self.offsets]
            figure = draw_distributions(self.offsets, paper or list(self.offsets)[:4])
            with atomic_path(analysis / f"{OFFSETS}.svg") as partial:
                figure.savefig(partial, format="svg", metadata={"Date": None})
        write_json(analysis / ROLES, self.to_json())

    def with_examples(self, examples: Mapping[tuple[Head, str, str], Example]) -> Roles:
        """The same with the sentence in which each role is seen best, by head, kind and name."""
        for head, head_roles in self.heads.items():
            head_roles.roles = [
                replace(role, seen_best=examples.get((head, role.kind, role.name)))
                for role in head_roles.roles
            ]
        return self

    def _repr_html_(self) -> str:
        """How a notebook shows the result: every head that has a role, and Table 1."""
        named = "".join(
            f"<tr><td>{head}</td><td>{escape('; '.join(map(str, head_roles.roles)))}</td></tr>"
            for head, head_roles in self.heads.items()
            if head_roles.roles
        )
        lines = "".join(
            f"<tr><td>{escape(line.relation)}</td><td>{escape(line.arrow)}</td>"
            f"<td>{line.head or ''}</td>"
            f"<td>{percent(line.score.value)} / {percent(line.baseline.value)}</td>"
            f"<td>{line.instances}</td></tr>"
            for line in self.relations
        )
        return (
            f"<table><tr><th>head</th><th>roles</th></tr>{named}</table>"
            "<table><tr><th>relation</th><th>direction</th><th>best head</th>"
            f"<th>accuracy / baseline</th><th>instances</th></tr>{lines}</table>"
        )


def percent(share: float | None) -> str:
    """A share as whole per cent, as in Table 1."""
    return "-" if share is None else f"{100 * share:.0f}"


def _flat(name: str, share: Interval) -> dict[str, float | None]:
    """An interval as three values: `score`, `score_low`, `score_high`."""
    return {name: share.value, f"{name}_low": share.low, f"{name}_high": share.high}


def _interval(stored: Mapping[str, Any], name: str) -> Interval:
    return Interval(stored[name], stored[f"{name}_low"], stored[f"{name}_high"])
