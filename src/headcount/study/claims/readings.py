"""Two ways of reading what the paper calls a head's share of its layer's relevance (App. A.3).

The paper sums signed relevance over a head's neurons and divides by the layer's sum, so that a
head that lowers the predicted word's logit has a negative share. Taking absolute values first
keeps every share between 0 and 1. Claims about relevance are tested under both.
"""

from __future__ import annotations

from collections.abc import Callable

from headcount.study.cases import Case
from headcount.study.claims.verdict import UNTESTABLE, Finding
from headcount.study.results import StudyModel

SIGNED, ABSOLUTE = "signed sums", "absolute values"
NAMES = {"signed": SIGNED, "absolute": ABSOLUTE, "neurons": "absolute values of neurons"}
COLUMNS = ("lrp_signed", "lrp_absolute", "lrp")
"""Columns of the head table that hold relevance; `lrp` is the one that figures show."""


def readings(model: StudyModel) -> dict[str, str]:
    """The readings that were measured, each with its column, the paper's own first."""
    columns: dict[str, str] = {}
    for column in COLUMNS:
        if model.column(column):
            columns.setdefault(_name(model, column), column)
    return {name: columns[name] for name in NAMES.values() if name in columns}


def under_both_readings(test: Callable[[Case, str], Finding]) -> Callable[[Case], Finding]:
    """A claim's test under each reading; the verdict is that of the paper's own."""

    def tested(case: Case) -> Finding:
        columns = readings(case.full)
        if not columns:
            return test(case, "lrp")  # which says that there is no relevance
        findings = {name: test(case, column) for name, column in columns.items()}
        leading = next(iter(findings.values()))
        if len(findings) == 1 or leading.verdict == UNTESTABLE:
            return leading
        parts = [f"{name[0].upper()}{name[1:]}: {f.reason}" for name, f in findings.items()]
        if len({finding.verdict for finding in findings.values()}) > 1:
            told = ", ".join(f"{f.verdict} with {name}" for name, f in findings.items())
            parts.append(f"The verdict depends on the reading: {told}.")
        return Finding(leading.verdict, " ".join(parts), leading.numbers, tuple(findings.items()))

    return tested


def _name(model: StudyModel, column: str) -> str:
    """Which reading a column is of: its name says so, or the record of the ranking does."""
    if column != "lrp":
        return NAMES[column.removeprefix("lrp_")]
    columns = model.ranking.columns if model.ranking else {}
    origin = columns.get("lrp", {}).get("enc", {})
    return NAMES.get((origin.get("lrp") or {}).get("normalise", "absolute"), ABSOLUTE)
