"""What a head must reach to have a role (Sec. 5): the thresholds that a user can set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from headcount.errors import UserError
from headcount.role import positional, rare_words, syntactic


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
