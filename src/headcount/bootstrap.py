"""Bootstrap intervals over sentences, from counts that take bounded memory.

Sentences are assigned in turn to at most `GROUPS` groups and counted by group; the bootstrap draws
groups with replacement. Up to `GROUPS` sentences that is the ordinary bootstrap over sentences.
With more, groups are samples of equal size, and drawing them estimates the same spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

GROUPS = 1000
REPLICATES = 1000
LEVEL = 0.95


class Interval(NamedTuple):
    """A share with its bootstrap interval; all None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def groups_for(sentences: int) -> int:
    """The number of groups for this many sentences."""
    return max(1, min(GROUPS, sentences))


def draw_groups(groups: int, rng: np.random.Generator, replicates: int = REPLICATES) -> np.ndarray:
    """Draw as many groups as there are, with replacement: `[replicates, groups]` times drawn."""
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=replicates)


@dataclass(frozen=True)
class Bootstrap:
    """Draws of groups: `draws[replicate, group]` is how often that group was drawn."""

    draws: np.ndarray
    level: float = LEVEL

    @classmethod
    def seeded(
        cls, groups: int, seed: int = 1, replicates: int = REPLICATES, level: float = LEVEL
    ) -> Bootstrap:
        """The same draws for the same seed."""
        draws = draw_groups(groups, np.random.default_rng(seed), replicates)
        return cls(draws.astype(np.float64), level)

    def sums(self, counts: np.ndarray) -> np.ndarray:
        """`[groups, ...]` counts to their sums in every replicate, `[replicates, ...]`."""
        flat = counts.reshape(len(counts), -1).astype(np.float64)
        return (self.draws @ flat).reshape(len(self.draws), *counts.shape[1:])

    def ratios(self, hits: np.ndarray, totals: np.ndarray) -> np.ndarray:
        """Shares in every replicate, NaN where a replicate has nothing to count."""
        return divide(self.sums(hits), self.sums(totals))

    def bounds(self, replicates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The percentile interval along the first axis, NaN where nothing was ever counted."""
        tail = (1 - self.level) / 2
        shape = replicates.shape[1:]
        low, high = np.full(shape, np.nan), np.full(shape, np.nan)
        counted = ~np.isnan(replicates).all(0)
        if counted.any():
            low[counted], high[counted] = np.nanquantile(
                replicates[:, counted], [tail, 1 - tail], axis=0
            )
        return low, high


def divide(hits: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Shares, NaN where the total is zero; `totals` broadcasts against `hits`."""
    hits, totals = np.broadcast_arrays(np.asarray(hits, float), np.asarray(totals, float))
    shares = np.full(hits.shape, np.nan)
    np.divide(hits, totals, out=shares, where=totals > 0)
    return shares


def interval(value: float, low: float, high: float) -> Interval:
    """An interval whose missing parts are None rather than NaN."""
    return Interval(*(None if math.isnan(part) else float(part) for part in (value, low, high)))


def intervals(hits: np.ndarray, totals: np.ndarray, bootstrap: Bootstrap) -> list[list[Interval]]:
    """Shares of `[groups, a, b]` hits in totals that broadcast with them, as `[a][b]`."""
    value = divide(hits.sum(0), totals.sum(0))
    return as_intervals(value, *bootstrap.bounds(bootstrap.ratios(hits, totals)))


def as_intervals(value: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[list[Interval]]:
    """Three arrays `[a, b]` as `[a][b]` intervals."""
    return [
        [interval(*parts) for parts in zip(*rows, strict=True)]
        for rows in zip(value.tolist(), low.tolist(), high.tolist(), strict=True)
    ]
