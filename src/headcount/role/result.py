"""The roles of a run's heads, and how they are kept: `roles.json`, the head table, the offsets.

Nothing else knows the format; what versions up to 0.1.0 wrote (format 1) is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.files import atomic_path, read_json, write_json, write_text
from headcount.heads import Head, HeadTable
from headcount.role import SYNTACTIC
from headcount.role.head_roles import BestHead, Criteria, Example, HeadRoles, Role, percent
from headcount.role.positional import offset_name
from headcount.role.relations import PAPER_RELATIONS, distributions_csv, draw_distributions
from headcount.role.syntactic import relation_name

FORMAT = 2
ROLES = "roles.json"
OFFSETS = "offsets"


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


def upgraded(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was read from `roles.json`, in format 2."""
    if "best" in stored:
        return stored
    rare = stored["rare_words"]
    counted = {name: rare[name] for name in ("sentences", "queries")}
    return {
        **stored,
        "heads": [_old_head(head) for head in stored["heads"]],
        "best": [_old_line(line) for line in stored["relations"]] + _old_chance(rare),
        "facts": {"rare words": counted} if rare.get("sentences") else {},
    }


def _old_head(stored: Mapping[str, Any]) -> dict[str, Any]:
    scores: dict[str, dict[str, Any]] = {}
    kind = "diagonal" if stored["head"].startswith("cross") else "positional"
    scores[kind] = {
        offset_name(int(o["offset"])): _old_interval(o, "share") for o in stored["offsets"]
    }
    if "mean_distance" in stored:
        for name in ("mean offset", "mean distance"):
            value = stored[name.replace(" ", "_")]
            scores[kind][name] = {"value": value, "low": None, "high": None}
    if "relations" in stored:
        scores["syntactic"] = {
            relation_name(r["relation"], r["direction"]): _old_interval(r, "accuracy")
            for r in stored["relations"]
        }
    if "rare_words" in stored:
        scores["rare words"] = {
            name.replace("_", " "): share for name, share in stored["rare_words"].items()
        }
    roles = [
        {**role, "name": "two rarest"} if role["role"] == "rare words" else role
        for role in stored["roles"]
    ]
    return {**stored, "roles": roles, "scores": scores}


def _old_line(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A line of Table 1 as the best head under a syntactic role."""
    accuracy = {f"score{end}": stored[f"accuracy{end}"] for end in ("", "_low", "_high")}
    name = relation_name(stored["relation"], stored["direction"])
    own = {"role": "syntactic", "name": name, "site": "enc", "head": stored["best_head"]}
    return {**stored, **accuracy, **own}


def _old_chance(rare: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chance baseline for rare words; this format did not say which head was best."""
    nothing = dict.fromkeys(
        f"{name}{end}" for name in ("score", "baseline", "margin") for end in ("", "_low", "_high")
    )
    return [
        {
            **nothing, "role": "rare words", "name": name, "site": "enc", "head": None,
            "instances": rare["queries"], "baseline": rare[f"chance_{name.replace(' ', '_')}"],
        }
        for name in ("rarest", "two rarest")
        if rare.get("sentences")
    ]  # fmt: skip


def _old_interval(stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"value": stored[name], "low": stored["low"], "high": stored["high"]}
