"""Kills of a study while a stage of a chosen kind runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from child import Case
from world import STAGED_AS

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
VICTIMS = ("study", "stage", "both")


@dataclass(frozen=True)
class Aim:
    """Which signal meets which process, and in a stage of which kind."""

    victim: str
    number: signal.Signals
    kind: str

    @classmethod
    def numbered(cls, case: int) -> Aim:
        """All combinations in turn; kinds of stages change fastest."""
        aims = list(product(VICTIMS, SIGNALS, STAGED_AS))
        return cls(*aims[case % len(aims)])

    def __str__(self) -> str:
        return f"{self.number.name} to {self.victim} in {self.kind}"

    @property
    def stamp(self) -> str:
        """The name of the stage's stamp."""
        return STAGED_AS[self.kind].replace("/", "--")

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """How the study may end: a stage that was interrupted is an error in its input."""
        own = () if self.victim == "stage" else (128 + self.number, -self.number)
        return (0, *own) if self.victim == "study" else (0, 2, *own)

    def shoot(self, study: int, folder: Path, seconds: float) -> dict[str, str]:
        """Wait for the stage in a study's folder, then so long, and send; what it has hit."""
        stamp = folder / "stages" / f"{self.stamp}.json"
        while not (stamp.exists() or ended(study)):
            time.sleep(0.002)
        time.sleep(seconds)
        under_way = stamp.exists() and "seconds" not in json.loads(stamp.read_text())
        targets = children(study) if self.victim != "study" else []
        for target in targets if self.victim == "stage" else [*targets, study]:
            with suppress(ProcessLookupError):
                os.kill(target, self.number)
        return {"stage": self.kind if under_way else "", "signal": self.number.name}


def ended(process: int) -> bool:
    """Whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, process, os.WNOHANG | os.WEXITED | os.WNOWAIT) is not None


def children(process: int) -> list[int]:
    """Processes that another one has started."""
    with suppress(OSError):
        return [
            int(n) for n in Path(f"/proc/{process}/task/{process}/children").read_text().split()
        ]
    return []


def stage_table(cases: Iterable[Case]) -> str:
    """Kills by the kind of stage that they hit and by signal: how many, and how many wrong."""
    chosen = [case for case in cases if case["kind"] == "study kill"]
    rows = [f"{'stage':<14}" + "".join(f"{number.name:>16}" for number in SIGNALS)]
    for kind in (*STAGED_AS, ""):
        cells = []
        for number in SIGNALS:
            cell = (kind, number.name)
            wrong = [bool(c["wrong"]) for c in chosen if (c["stage"], c["signal"]) == cell]
            cells.append(f"{f'{len(wrong)}, {sum(wrong)} wrong':>16}")
        rows.append(f"{kind or 'too late':<14}" + "".join(cells))
    return "\n".join(rows) if chosen else ""
