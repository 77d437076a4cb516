"""Timing contestants fairly: they take turns, and the first round is a warm-up.

Runs take turns in every round, in a different order each time, so that other load on the machine
affects all of them alike. The first round is not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headcount.progress import Progress, silent

LARGE = 64
"""Sentences of a large batch."""


@dataclass(frozen=True)
class Timing:
    """Seconds per sentence over the rounds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """From the seconds of each round."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0])
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)


def interleaved(
    tasks: Sequence[dict[str, Callable[[], int]]],
    rounds: int,
    progress: Progress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Timing]]:
    """Timings of each contestant's tasks; a task returns how many sentences it has worked on."""
    seconds: list[dict[str, list[float]]] = [{name: [] for name in each} for each in tasks]
    for number in range(rounds + 1):
        for name in tasks[0]:
            for turn in range(len(tasks)):
                contestant = (turn + number) % len(tasks)
                began = clock()
                sentences = tasks[contestant][name]()
                took = clock() - began
                if number:  # the first round warms up
                    seconds[contestant][name].append(took / sentences)
        progress("Timing", number + 1, rounds + 1)
    return [{name: Timing.of(each[name]) for name in each} for each in seconds]
