"""Claims, findings about single models, and how these become a verdict on a study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headcount.study.cases import Case
from headcount.study.results import StudyModel

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNTESTABLE = "not testable here"
MIXED = "holds for some models"
"""Of a study with several models only: it holds for at least one of them and not for all."""

VERDICTS = (HOLDS, MIXED, UNDECIDED, FAILS, UNTESTABLE)

Number = float | int | str | bool | None


@dataclass(frozen=True)
class Finding:
    """One claim on one full model: the verdict, the numbers behind it, and a line that says it.

    `readings` has the findings under each way of reading the paper, where there are several.
    """

    verdict: str
    reason: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    readings: tuple[tuple[str, Finding], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The form of `claims.json`."""
        stored: dict[str, Any] = {
            "verdict": self.verdict,
            "reason": self.reason,
            "numbers": dict(self.numbers),
        }
        if self.readings:
            stored["readings"] = {name: finding.to_json() for name, finding in self.readings}
        return stored


def decide(holds: bool, reason: str, **numbers: Number) -> Finding:
    """A finding whose verdict is a comparison of numbers that are known exactly."""
    return Finding(HOLDS if holds else FAILS, reason, numbers)


def undecided(reason: str, **numbers: Number) -> Finding:
    """A finding whose numbers are too uncertain for a verdict; the reason says what would help."""
    return Finding(UNDECIDED, reason, numbers)


def untestable(reason: str) -> Finding:
    """A finding for which the study has no data."""
    return Finding(UNTESTABLE, reason)


def decide_against_chance(
    criterion: bool, p_value: float, draws: int, reason: str, remedy: str, **numbers: Number
) -> Finding:
    """A finding that is undecided if the criterion is met but chance meets it too often."""
    numbers = {**numbers, "p_value": p_value, "p_value_floor": 1 / (draws + 1)}
    text = f"{reason} ({p_text(p_value, draws)})."
    if criterion and p_value >= SIGNIFICANT:
        return undecided(f"{text} Chance alone would do this too often; {remedy}.", **numbers)
    return decide(criterion, text, **numbers)


SIGNIFICANT = 0.05


def p_text(p_value: float, draws: int) -> str:
    """`p = 0.023`; a bound at the smallest value that the number of random draws allows."""
    floor = 1 / (draws + 1)
    if p_value <= floor * 1.0001:
        bound = 10.0 ** math.ceil(math.log10(floor))
        return f"p < {bound:g}"
    return f"p = {p_value:.3f}"


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "-" if share is None else f"{100 * share:.0f} %"


@dataclass(frozen=True)
class Claim:
    """A finding of the paper as a statement about a study.

    `criterion` says in words what `test` computes; both are fixed before any study is run.
    `short` is a few words for a list of what was seen.
    """

    id: str
    section: str
    statement: str
    criterion: str
    test: Callable[[Case], Finding]
    short: str = ""


@dataclass(frozen=True)
class Verdict:
    """A claim on a whole study: the finding for each full model, and what they come to."""

    claim: Claim
    findings: tuple[tuple[str, Finding], ...]

    @property
    def verdict(self) -> str:
        """The verdict of the models that it can be tested on; mixed if it holds for some only."""
        tested = self._tested()
        if not tested:
            return UNTESTABLE
        if len(set(tested)) == 1:
            return tested[0]
        if HOLDS in tested:
            return MIXED
        return FAILS  # some fail, the others are unknown

    @property
    def label(self) -> str:
        """The verdict in a few words; of several models it says for how many it holds."""
        tested = self._tested()
        if len(tested) < 2:
            return self.verdict
        counts = Counter(tested)
        parts = [f"holds for {counts[HOLDS]} of {len(tested)}"]
        if counts[UNDECIDED]:
            parts.append(f"undecided for {counts[UNDECIDED]}")
        return ", ".join(parts)

    @property
    def reason(self) -> str:
        """The findings in a line each, named where there are several models."""
        if not self.findings:
            return "There is no full model."
        if len(self.findings) == 1:
            return self.findings[0][1].reason
        if self.verdict == UNTESTABLE:
            return self._why_untestable()
        tested = [(label, f) for label, f in self.findings if f.verdict != UNTESTABLE]
        others = [label for label, f in self.findings if f.verdict == UNTESTABLE]
        text = " ".join(f"{label}: {finding.reason}" for label, finding in tested)
        return text + (f" Not testable: {'; '.join(others)}." if others else "")

    def _tested(self) -> list[str]:
        return [f.verdict for _, f in self.findings if f.verdict != UNTESTABLE]

    def _why_untestable(self) -> str:
        """Each reason once, and where there are several the models that it concerns."""
        models: dict[str, list[str]] = {}
        for label, finding in self.findings:
            models.setdefault(finding.reason, []).append(label)
        if len(models) == 1:
            return next(iter(models))
        return " ".join(f"{'; '.join(labels)}: {reason}" for reason, labels in models.items())

    def to_json(self) -> dict[str, Any]:
        """The form of `claims.json`."""
        return {
            "id": self.claim.id,
            "section": self.claim.section,
            "statement": self.claim.statement,
            "criterion": self.claim.criterion,
            "verdict": self.verdict,
            "label": self.label,
            "reason": self.reason,
            "findings": [{"model": label, **finding.to_json()} for label, finding in self.findings],
        }


def check_claims(claims: Sequence[Claim], cases: Sequence[Case]) -> list[Verdict]:
    """Every claim on every full model."""
    return [
        Verdict(claim, tuple((case.label, claim.test(case)) for case in cases)) for claim in claims
    ]


DRAWS = 2000


def shuffled_within_layers(layers: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    """Each layer's values `[heads]` in random orders, `[DRAWS, heads]`."""
    rng = torch.Generator().manual_seed(seed)
    return [values[torch.rand(DRAWS, len(values), generator=rng).argsort(1)] for values in layers]


NAMES = {
    "signed": "signed sums",
    "absolute": "absolute values",
    "neurons": "absolute values of neurons",
}
"""What the ways to normalise relevance are called, the paper's own first."""
COLUMNS = ("lrp_signed", "lrp_absolute", "lrp")
"""Columns of the head table that hold relevance; `lrp` is the one that figures show."""


def readings(model: StudyModel) -> dict[str, str]:
    """Readings of a head's share that were measured, with their columns, the paper's own first.

    The paper sums signed relevance over a head's neurons and divides by the layer's sum (App. A.3),
    so that a head that lowers the predicted word's logit has a negative share. Taking absolute
    values first keeps every share between 0 and 1. Claims about relevance are tested under both.
    """
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
    return NAMES.get((origin.get("lrp") or {}).get("normalise", ""), NAMES["absolute"])
