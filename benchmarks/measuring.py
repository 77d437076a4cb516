"""Measuring in turns, so that other load on the machine affects all contenders alike."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"

Cost = dict[str, Any]


class Contender:
    """A process (`contenders/with_*.py`) that does a task when it is asked to."""

    def __init__(
        self,
        python: Path,
        script: str,
        *arguments: str,
        threads: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        count = str(threads)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [str(python), str(HERE / "contenders" / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(names, count) | quiet | dict(environment or {}),
        )

    @cached_property
    def versions(self) -> dict[str, str]:
        """Of its packages; asking waits until it is ready."""
        return self._answer()

    def run(self, task: str) -> Cost:
        """Do a task; `cpu` and `wall` are its seconds, the rest is what the contender says."""
        self.begin(task)
        return self.finish()

    def begin(self, task: str) -> None:
        """Start a task without waiting for it."""
        assert self.versions
        assert self.process.stdin is not None
        self.process.stdin.write(task + "\n")
        self.process.stdin.flush()

    def finish(self) -> Cost:
        """Wait for the task that was begun."""
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended: exit code {self.process.wait()}")
        results: dict[str, Any] = json.loads(line)
        return results

    def __enter__(self) -> Contender:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Team:
    """Several processes that are one contender: they work at the same time."""

    def __init__(self, members: Sequence[Contender]) -> None:
        self.members = members

    def run(self, task: str) -> Cost:
        """The cost of all: the clock of the slowest, the processor's time of all together."""
        for member in self.members:
            member.begin(task)
        costs = [member.finish() for member in self.members]
        together = {"wall": max(column(costs, "wall")), "cpu": sum(column(costs, "cpu"))}
        return costs[0] | together


def take_turns(work: Mapping[str, Callable[[], Cost]], rounds: int) -> dict[str, list[Cost]]:
    """What each contender's work costs in every round, in a different order each time.

    One more round, the first, warms up and is not counted.
    """
    names = list(work)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for turn in range(len(names)):
            name = names[(turn + number) % len(names)]
            cost = work[name]()
            if number:
                costs[name].append(cost)
    return costs


def column(costs: Iterable[Cost], name: str) -> list[float]:
    """One figure of every round."""
    return [float(cost[name]) for cost in costs]


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """The median of the rounds, and the least and the most."""
    chosen = {"median": statistics.median(values), "least": min(values), "most": max(values)}
    return {name: _rounded(value, digits) for name, value in chosen.items()}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of one contender's figure over another's, round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power with which values grow, from a straight line through the logarithms."""
    points = [(math.log(size), math.log(value)) for size, value in zip(sizes, values, strict=True)]
    slope, _ = statistics.linear_regression(*zip(*points, strict=True))
    return round(slope, 2)


def machine() -> dict[str, Any]:
    """Where this was measured, and how busy the machine was."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "cores_used": len(os.sched_getaffinity(0)),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _rounded(value: float, digits: int) -> float:
    """Significant digits, so that small and large figures read alike."""
    return float(f"{value:.{digits}g}")
