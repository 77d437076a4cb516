"""What a claim is, what looking at one model gives, and how that becomes a verdict on a study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headcount.study.cases import Case

HOLDS = "holds"
FAILS = "does not hold"
UNTESTABLE = "not testable here"

Number = float | int | str | None


@dataclass(frozen=True)
class Finding:
    """One claim on one full model: the verdict, the numbers behind it, and a line that says it."""

    verdict: str
    reason: str
    numbers: Mapping[str, Number] = field(default_factory=dict)


def decide(holds: bool, reason: str, **numbers: Number) -> Finding:
    """A finding whose verdict is a comparison."""
    return Finding(HOLDS if holds else FAILS, reason, numbers)


def untestable(reason: str) -> Finding:
    """A finding where the study has nothing to look at."""
    return Finding(UNTESTABLE, reason)


def percent(share: float | None) -> str:
    """A share as people read it."""
    return "-" if share is None else f"{100 * share:.0f} %"


@dataclass(frozen=True)
class Claim:
    """A finding of the paper as a statement about a study.

    `criterion` says in words what `test` computes; both are fixed before any study is run.
    """

    id: str
    section: str
    statement: str
    criterion: str
    test: Callable[[Case], Finding]


@dataclass(frozen=True)
class Verdict:
    """A claim on a whole study: the finding for each full model, and what they come to."""

    claim: Claim
    findings: tuple[tuple[str, Finding], ...]

    @property
    def verdict(self) -> str:
        """Holds where it holds for every model that it can be tested on, and for one at least."""
        tested = [f.verdict for _, f in self.findings if f.verdict != UNTESTABLE]
        if not tested:
            return UNTESTABLE
        return HOLDS if all(verdict == HOLDS for verdict in tested) else FAILS

    @property
    def reason(self) -> str:
        """The findings in a line each, named where there are several models."""
        if not self.findings:
            return "The study has no full model."
        if len(self.findings) == 1:
            return self.findings[0][1].reason
        if self.verdict == UNTESTABLE:
            return self._why_untestable()
        tested = [(label, f) for label, f in self.findings if f.verdict != UNTESTABLE]
        others = [label for label, f in self.findings if f.verdict == UNTESTABLE]
        text = " ".join(f"{label}: {finding.reason}" for label, finding in tested)
        return text + (f" Not testable: {'; '.join(others)}." if others else "")

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
            "reason": self.reason,
            "findings": [
                {
                    "model": label,
                    "verdict": finding.verdict,
                    "reason": finding.reason,
                    "numbers": dict(finding.numbers),
                }
                for label, finding in self.findings
            ],
        }


def check_claims(claims: Sequence[Claim], cases: Sequence[Case]) -> list[Verdict]:
    """Every claim on every full model."""
    return [
        Verdict(claim, tuple((case.label, claim.test(case)) for case in cases)) for claim in claims
    ]
