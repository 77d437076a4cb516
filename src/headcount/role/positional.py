"""Positional heads: the argmax key stands at one fixed offset (Sec. 5.1).

The share of an offset is taken over the queries for which it stays inside the sentence: otherwise a
sentence of five tokens could never reach 90 % for offset -1. Offset 0, the token itself, is one of
them; it is reported apart as well, since a head that looks at itself is a finding of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import Interval, divide
from headcount.model.attention import REACH, offset_counts
from headcount.role.kind import RoleCounts, RoleKind, Scores, Setting, SiteBatch

if TYPE_CHECKING:
    from headcount.role.head_roles import Criteria

THRESHOLD = 0.90
LEAST_QUERIES = 10
"""An offset that fewer queries could have is not judged: one of one is no habit."""
OWN = "0"


def offset_name(offset: int) -> str:
    """An offset as roles have it in their names: `-1`, `0`, `+2`."""
    return f"{offset:+d}" if offset else OWN


OFFSET_NAMES = tuple(offset_name(offset) for offset in range(-REACH, REACH + 1))


class PositionalCounts(RoleCounts):
    """How often each head's argmax is at each offset.

    lengths: [longest + 1], sentences by their number of tokens.
    """

    names = OFFSET_NAMES

    def __init__(self, setting: Setting) -> None:
        self.allocate(setting)
        self.causal = setting.site == "dec"
        self.lengths = torch.zeros(setting.longest + 1, dtype=torch.int64, device=setting.device)

    def begin(self, batch: SiteBatch) -> None:
        """Count the queries that each offset has; tokens stand at the front of a sentence."""
        nowhere = torch.full_like(batch.queries, -1, dtype=torch.int64)[:, None]
        _, possible = offset_counts(nowhere, batch.queries)
        self.totals.index_add_(0, batch.groups, possible)
        length = batch.queries.sum(-1)
        self.lengths.index_add_(0, length, torch.ones_like(length))

    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads."""
        hits, _ = offset_counts(argmax, batch.queries)
        self.hits[:, heads].index_add_(0, batch.groups, hits)

    def baselines(self) -> np.ndarray:
        """The share of each offset for a head that looks anywhere by chance."""
        return chance_shares(self.lengths.cpu().numpy(), REACH, self.causal)

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*super().tensors, self.lengths]


def chance_shares(lengths: np.ndarray, reach: int = REACH, causal: bool = False) -> np.ndarray:
    """The share of each offset for a head whose argmax is any token that it sees, at random.

    `lengths[n]` is the number of sentences of n tokens; under `causal` a query sees itself and
    what stands before it. Returns `[offsets]`.
    """
    tokens = np.arange(len(lengths))
    offsets = np.arange(-reach, reach + 1)
    possible = np.clip(tokens - np.abs(offsets)[:, None], 0, None)  # queries: [offsets, lengths]
    if causal:
        # The query at position i sees i + 1 tokens; offset -k exists for queries from k on.
        harmonic = np.concatenate([[0.0], np.cumsum(1 / np.maximum(tokens[1:], 1))])
        before = harmonic[np.clip(-offsets, 0, len(harmonic) - 1)]
        hits = np.where(offsets[:, None] > 0, 0.0, np.clip(harmonic - before[:, None], 0, None))
    else:
        hits = possible / np.maximum(tokens, 1)
    return divide((hits * lengths).sum(-1), (possible * lengths).sum(-1))


def offset_shares(scores: Scores) -> dict[int, Interval]:
    """The share of each offset among a head's scores."""
    return {int(name): scores[name] for name in OFFSET_NAMES if name in scores}


def best_offset(scores: Scores) -> int | None:
    """The offset with the largest share, the nearest among equals."""
    known = {o: s.value for o, s in offset_shares(scores).items() if s.value is not None}
    return max(known, key=lambda o: (known[o], -abs(o), o)) if known else None


class OffsetRole(RoleKind):
    """Heads whose argmax is at one offset: from the query, or from the diagonal."""

    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """The best offset, where its share reaches the threshold on more than a few queries."""
        judged = {name: s for name, s in scores.items() if instances.get(name, 0) >= LEAST_QUERIES}
        best = best_offset(judged)
        if best is None:
            return []
        name = offset_name(best)
        return [name] * ((scores[name].value or 0.0) >= criteria.threshold)

    def title(self, name: str) -> str:
        """`positional -1`."""
        return f"{self.name} {name}"

    def label(self, name: str) -> str:
        """The offset with a real minus sign."""
        return name.replace("-", "−")

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The best offset and its share."""
        best = best_offset(scores)
        if best is None:
            return {}
        share = scores[offset_name(best)].value
        return {f"{self.name}_share": share, f"{self.name}_offset": best}


class Positional(OffsetRole):
    """Heads that look at a neighbour, at the token itself, or a fixed number of tokens away."""

    name = "positional"
    help = "looks at one fixed offset, such as the previous token"
    sites = ("enc", "dec")
    colour = "#7a4b9d"
    letter = "P"

    def counts(self, setting: Setting) -> PositionalCounts:
        """Empty counts for one site."""
        return PositionalCounts(setting)

    def sentence(self, name: str) -> str:
        """Where the head looks, in words."""
        offset = int(name)
        if not offset:
            return "looks at the token itself"
        number = "one token" if abs(offset) == 1 else f"{abs(offset)} tokens"
        return f"looks {number} to the {'left' if offset < 0 else 'right'}"

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The best offset and its share, and the share of the token itself."""
        own = scores.get(OWN)
        return super().columns(scores) | {"own_share": None if own is None else own.value}
