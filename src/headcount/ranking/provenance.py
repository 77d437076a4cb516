"""How the columns of a run's head table were measured: `analysis/measures.json`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.files import read_json, write_json
from headcount.ranking.lrp.audit import AuditRow

MEASURES_FILE = "measures.json"
OLD_NAME = "ranking.json"
"""What earlier versions called it."""

Origin = Mapping[str, Any]
"""Options, sentences and weights behind a column at one site: `Ranking.about` and `weights`."""


@dataclass
class Provenance:
    """How every measured column was obtained.

    columns   by column and site, the ranking that measured it
    audit     where the relevance of the last LRP went, and `audit_of` which ranking that was
    """

    columns: dict[str, dict[str, Origin]] = field(default_factory=dict)
    audit: list[AuditRow] = field(default_factory=list)
    audit_of: Origin | None = None

    def add(self, columns: Iterable[str], origin: Origin, audit: list[AuditRow]) -> None:
        """A new ranking: its columns at its sites, and its audit where it has one."""
        for name in columns:
            self.columns[name] = self.columns.get(name, {}) | dict.fromkeys(origin["sites"], origin)
        if audit:
            self.audit, self.audit_of = audit, origin

    def weights(self, column: str, sites: Iterable[str]) -> set[str | None]:
        """Hashes of the weights that a column was measured with at these sites."""
        origins = self.columns.get(column, {})
        return {origins[site]["weights"] for site in sites if site in origins}

    def to_json(self) -> dict[str, Any]:
        """What the file holds."""
        audit = [asdict(row) for row in self.audit]
        return {"columns": self.columns, "audit": audit, "audit_of": self.audit_of}

    @classmethod
    def from_json(cls, value: Any, where: str) -> Provenance:
        """Read `to_json`, also as earlier versions wrote it."""
        try:
            audit = [AuditRow(**row) for row in value.get("audit") or []]
            columns = {name: dict(sites) for name, sites in value.get("columns", {}).items()}
            return cls(columns, audit, value.get("audit_of"))
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"{where} cannot be read as a record of measures ({error!r}).",
                "Run headcount rank again.",
            ) from error

    def save(self, analysis: Path) -> None:
        """Write it into an analysis folder, in place of an earlier version's file."""
        write_json(analysis / MEASURES_FILE, self.to_json())
        (analysis / OLD_NAME).unlink(missing_ok=True)

    @classmethod
    def load(cls, analysis: Path) -> Provenance | None:
        """What an analysis folder has; None where no head was ever measured."""
        for name in (MEASURES_FILE, OLD_NAME):
            if (analysis / name).is_file():
                return cls.from_json(read_json(analysis / name), str(analysis / name))
        return None
