"""Kills of a study while a stage of a chosen kind runs."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from child import Case

KINDS = ("data", "adopt", "train", "score", "rank", "roles", "prune", "bench", "report")
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
        aims = list(product(VICTIMS, SIGNALS, KINDS))
        return cls(*aims[case % len(aims)])

    def __str__(self) -> str:
        return f"{self.number.name} to {self.victim} in {self.kind}"

    @property
    def verb(self) -> str:
        """The cheapest study that has such a stage."""
        return "study" if self.kind == "report" else "study without report"

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """How the study may end: a stage that was interrupted is an error in its input."""
        own = () if self.victim == "stage" else (128 + self.number, -self.number)
        return (0, *own) if self.victim == "study" else (0, 2, *own)

    def shoot(
        self, study: int, place: Path, seconds: dict[str, float], rng: random.Random
    ) -> dict[str, str]:
        """Wait for a stage of the kind, then some of its time, and send; what it has hit."""
        kinds = stage_kinds(place)
        stage = rng.choice(sorted(name for name in seconds if kinds[name] == self.kind))
        stamps = place / "new" / "stages"
        while not ((stamps / f"{stage}.json").exists() or ended(study)):
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.8 * seconds[stage]))
        hit = sorted(kinds[name] for name in under_way(stamps))
        targets = children(study) if self.victim != "study" else []
        for target in targets if self.victim == "stage" else [*targets, study]:
            with suppress(ProcessLookupError):
                os.kill(target, self.number)
        return {"stage": hit[0] if hit else "", "signal": self.number.name}


def stage_kinds(place: Path) -> dict[str, str]:
    """The kind of every stage of the study, by the name of its stamp."""
    from headcount.study.plan import make_plan
    from headcount.study.recipe import load_study

    plan = make_plan(load_study(place / "stages.yaml"), place / "new")
    return {stage.name.replace("/", "--"): stage.kind for stage in plan}


def under_way(stamps: Path) -> list[str]:
    """Stages that have begun and not ended."""
    files = stamps.glob("*.json")
    return [path.stem for path in files if "seconds" not in json.loads(path.read_text())]


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
    for kind in (*KINDS, ""):
        cells = []
        for number in SIGNALS:
            cell = (kind, number.name)
            wrong = [bool(c["wrong"]) for c in chosen if (c["stage"], c["signal"]) == cell]
            cells.append(f"{f'{len(wrong)}, {sum(wrong)} wrong':>16}")
        rows.append(f"{kind or 'between stages':<14}" + "".join(cells))
    return "\n".join(rows) if chosen else ""
