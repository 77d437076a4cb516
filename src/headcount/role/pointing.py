"""Roles of heads that point at certain tokens of a sentence, such as the rarest.

Such a role is one function that tells which tokens are wanted, and a threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import divide
from headcount.role.kind import RoleCounts, RoleKind, Scores, Setting, SiteBatch

if TYPE_CHECKING:
    from headcount.role.criteria import Criteria

FIXED_POINT = 2**20
"""Expected hits by chance are summed in integers of 2^-20, so that the order does not matter."""


@dataclass(frozen=True)
class Wanted:
    """Which tokens a head of the role looks at.

    queries: [batch, queries], the queries that count
    keys: for each name, the wanted tokens `[batch, keys]`
    """

    queries: Tensor
    keys: Mapping[str, Tensor]


Want = Callable[[SiteBatch, Setting], Wanted]


class PointingCounts(RoleCounts):
    """How often each head's argmax is a wanted token; the baseline is any token by chance."""

    def __init__(self, setting: Setting, names: tuple[str, ...], want: Want) -> None:
        self.names, self.setting, self.want = names, setting, want
        self.allocate(setting)
        self.expected = torch.zeros(len(names), dtype=torch.int64, device=setting.device)
        self.sentences = torch.zeros(1, dtype=torch.int64, device=setting.device)

    def begin(self, batch: SiteBatch) -> None:
        """Find the wanted tokens and count the queries."""
        self.wanted = self.want(batch, self.setting)
        queries = self.wanted.queries.sum(-1)  # [batch]
        self.totals.index_add_(0, batch.groups, queries[:, None].expand(-1, len(self.names)))
        self.sentences += (queries > 0).sum()
        tokens = batch.keys.sum(-1).clamp(min=1)
        for i, name in enumerate(self.names):
            number = self.wanted.keys[name].sum(-1)  # [batch]
            self.expected[i] += (queries * number * FIXED_POINT // tokens).sum()

    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads."""
        counted = self.wanted.queries[:, None, :]
        for i, name in enumerate(self.names):
            keys = self.wanted.keys[name][:, None, :].expand(-1, argmax.shape[1], -1)
            hits = (keys.gather(2, argmax) & counted).sum(-1)  # [batch, heads]
            self.hits[:, heads, i].index_add_(0, batch.groups, hits)

    def baselines(self) -> np.ndarray:
        """The share of queries that would hit a wanted token by chance, `[names]`."""
        expected = self.expected.cpu().numpy() / FIXED_POINT
        return divide(expected, self.totals.sum(0).cpu().numpy())

    def facts(self) -> dict[str, int]:
        """How many sentences count, and how many queries they have."""
        return {"sentences": int(self.sentences), "queries": int(self.totals[:, 0].sum())}

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*super().tensors, self.expected, self.sentences]


class PointingRole(RoleKind):
    """Heads that send at least `threshold` of their queries to wanted tokens.

    And at least `ratio` times as many as chance would: in short sentences a large share is nothing
    special.
    """

    def __init__(
        self,
        name: str,
        help: str,
        want: Want,
        *,
        names: tuple[str, ...] = (),
        threshold: float = 0.5,
        ratio: float = 2.0,
        colour: str = "#888888",
        letter: str = "",
        needs: tuple[str, ...] = (),
        sites: tuple[str, ...] = ("enc",),
    ) -> None:
        """`names` are the kinds of tokens that `want` tells apart; the last one decides."""
        self.name, self.help, self.want = name, help, want
        self.names = names or (name,)
        self.threshold, self.ratio = threshold, ratio
        self.colour, self.letter = colour, letter or name[0].upper()
        self.needs, self.sites = needs, sites

    def counts(self, setting: Setting) -> PointingCounts:
        """Empty counts for one site."""
        return PointingCounts(setting, self.names, self.want)

    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """The role's own name where enough queries go to the wanted tokens."""
        deciding = self.names[-1]
        share, chance = scores[deciding].value, baselines[deciding]
        if share is None:
            return []
        return [deciding] * (share >= self.threshold and share >= chance * self.ratio)

    def sentence(self, name: str) -> str:
        """What a head of this role does."""
        return f"points at {self.name}"

    def label(self, name: str) -> str:
        """The role's first word."""
        return self.name.split()[0]

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The share of each kind of wanted tokens."""
        return {f"{name.replace(' ', '_')}_share": share.value for name, share in scores.items()}
