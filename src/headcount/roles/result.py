"""What the analysis found, and how it is kept: `roles.json`, the head table, the offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headcount.files import atomic_path, read_json, write_json, write_text
from headcount.heads import Head, HeadTable
from headcount.roles.criteria import Criteria
from headcount.roles.naming import HeadReport, RelationReport
from headcount.roles.offsets import distributions_csv, draw_distributions
from headcount.roles.relations import PAPER_RELATIONS, arrow

FORMAT = 1
ROLES = "roles.json"
OFFSETS = "offsets"


@dataclass(frozen=True)
class Roles:
    """The roles of every head, Table 1, and what they were measured on.

    data: where sentences and parses came from, and how many could be used
    offsets: for each relation, how often the dependent stands at each offset from its head
    persons: shares of first, second and third person among subjects
    rare: the sentences and queries behind the rare-word shares, and what chance would give
    """

    heads: list[HeadReport]
    relations: list[RelationReport]
    criteria: Criteria
    data: dict[str, Any]
    offsets: dict[str, dict[int, int]]
    persons: dict[str, float | int | None]
    rare: dict[str, float | int | None]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "format": FORMAT,
            "data": self.data,
            "criteria": self.criteria.to_json(),
            "heads": [head_json(report) for report in self.heads],
            "relations": [line.to_json() for line in self.relations],
            "offsets": {
                relation: {str(offset): counts[offset] for offset in sorted(counts)}
                for relation, counts in self.offsets.items()
            },
            "persons": self.persons,
            "rare_words": self.rare,
            "columns": list(self.columns()),
        }

    def columns(self) -> dict[str, dict[Head, Any]]:
        """The columns of the head table."""
        columns: dict[str, dict[Head, Any]] = {}
        for report in self.heads:
            for name, value in _cells(report).items():
                columns.setdefault(name, {})
                if value is not None:
                    columns[name][report.head] = value
        return columns

    def add_to(self, table: HeadTable, stale: Mapping[str, Any] | None = None) -> None:
        """Add the columns; heads of sites that were not analysed keep what they had.

        `stale` is an earlier result whose columns go where this one has nothing to say. A
        confidence that the ranking measured stays.
        """
        sites = {report.head.site for report in self.heads}
        new = self.columns()
        measured = {report.head: report.confidence for report in self.heads}
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

    def _repr_html_(self) -> str:
        """How a notebook shows the result: every head that has a role, and Table 1."""
        named = "".join(
            f"<tr><td>{report.head}</td><td>{escape('; '.join(map(str, report.roles)))}</td></tr>"
            for report in self.heads
            if report.roles
        )
        lines = "".join(
            f"<tr><td>{escape(line.relation)}</td>"
            f"<td>{escape(arrow(line.relation, line.direction))}</td><td>{line.best or ''}</td>"
            f"<td>{percent(line.accuracy.value)} / {percent(line.baseline.value)}</td>"
            f"<td>{line.instances}</td></tr>"
            for line in self.relations
        )
        return (
            f"<table><tr><th>head</th><th>roles</th></tr>{named}</table>"
            "<table><tr><th>relation</th><th>direction</th><th>best head</th>"
            f"<th>accuracy / baseline</th><th>instances</th></tr>{lines}</table>"
        )


def percent(share: float | None) -> str:
    """A share as whole per cent, as Table 1 has it."""
    return "-" if share is None else f"{100 * share:.0f}"


def head_json(report: HeadReport) -> dict[str, Any]:
    """All that was measured of one head."""
    value: dict[str, Any] = {
        "head": str(report.head),
        "confidence": report.confidence,
        "roles": [role.to_json() for role in report.roles],
        "offsets": [
            {"offset": o, "share": s.value, "low": s.low, "high": s.high}
            for o, s in report.shares.items()
        ],
    }
    if report.accuracies:
        value["relations"] = [
            {"relation": r, "direction": d, "accuracy": a.value, "low": a.low, "high": a.high}
            for (r, d), a in report.accuracies.items()
        ]
    if report.rare is not None:
        names = ("rarest", "two_rarest")
        value["rare_words"] = {
            name: share._asdict() for name, share in zip(names, report.rare, strict=True)
        }
    if report.distances is not None:
        value["mean_offset"], value["mean_distance"] = report.distances
    return value


def _cells(report: HeadReport) -> dict[str, Any]:
    """One head's row of the head table."""
    kind = "diagonal" if report.head.site == "cross" else "positional"
    best = report.best_offset()
    cells: dict[str, Any] = {"roles": "; ".join(map(str, report.roles)) or None}
    if best is not None:
        cells[f"{kind}_share"] = report.shares[best].value
        cells[f"{kind}_offset"] = best
    if report.distances is not None:
        cells["diagonal_distance"] = report.distances[1]
    for (relation, direction), accuracy in report.accuracies.items():
        cells[f"{relation}_{direction}"] = accuracy.value
    if report.rare is not None:
        cells["rarest_share"] = report.rare[0].value
        cells["two_rarest_share"] = report.rare[1].value
    return cells
