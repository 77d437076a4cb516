"""What a head must reach to have a role, and what each measurement is (Sec. 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headcount.errors import UserError
from headcount.roles import positional, rare_words, syntactic
from headcount.roles.uncertainty import Interval

POSITIONAL, SYNTACTIC, RARE, DIAGONAL = "positional", "syntactic", "rare words", "diagonal"


@dataclass(frozen=True)
class Criteria:
    """The thresholds.

    threshold       share of one offset that makes a head positional (or diagonal, for `cross`)
    margin          how far a syntactic head is above the positional baseline
    relative        the margin is a share of the baseline, not points
    rare_threshold  share of queries that a rare-words head sends to one of the two rarest tokens
    rare_ratio      and how many times chance that is: in a sentence of three tokens, chance is 2/3
    least           instances that a syntactic role needs; where it is not given, 1, and 30 when all
                    relations are looked at: some of those have a handful of instances
    frequent        only sentences count with a token that is not among so many most frequent ones
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
                raise UserError(f"A {name} of {value} is no share.", "Choose one up to 1.")
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


@dataclass(frozen=True)
class Role:
    """A role that a head meets: how well, against what, on how many instances.

    `name` says which one: `-1` of the positional roles, `nsubj v → s` of the syntactic ones.
    """

    kind: str
    name: str
    score: Interval
    baseline: float
    instances: int
    margin: Interval

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind in (POSITIONAL, DIAGONAL) else self.name

    def to_json(self) -> dict[str, Any]:
        """The role as JSON values."""
        return {
            "role": self.kind,
            "name": self.name,
            "score": self.score.value,
            "score_low": self.score.low,
            "score_high": self.score.high,
            "baseline": self.baseline,
            "margin": self.margin.value,
            "margin_low": self.margin.low,
            "margin_high": self.margin.high,
            "instances": self.instances,
        }
