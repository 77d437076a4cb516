"""From counts to roles: scores with their intervals, baselines, and the criteria met (Sec. 5)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from headcount.bootstrap import Bootstrap, Interval, as_intervals, divide, intervals
from headcount.role.counting import SiteCounts
from headcount.role.criteria import Criteria
from headcount.role.kind import RoleCounts, RoleKind
from headcount.role.registry import ROLES
from headcount.role.result import BestHead, HeadRoles, Role


def name_heads(
    counts: SiteCounts, bootstrap: Bootstrap, criteria: Criteria
) -> tuple[list[HeadRoles], list[BestHead]]:
    """The roles of a site's heads, and the best head under every name of every role."""
    pairs = zip(counts.heads.heads, counts.confidence.values(), strict=True)
    heads = [HeadRoles(head, confidence) for head, confidence in pairs]
    best: list[BestHead] = []
    for name, role_counts in counts.roles.items():
        best += name_role(ROLES[name], role_counts, heads, bootstrap, criteria)
    return heads, best


def name_role(
    kind: RoleKind,
    counts: RoleCounts,
    heads: Sequence[HeadRoles],
    bootstrap: Bootstrap,
    criteria: Criteria,
) -> list[BestHead]:
    """Add one role's scores to the heads, and the role itself to those that meet it."""
    hits, totals = by_group(counts.hits, bootstrap), by_group(counts.totals, bootstrap)
    scores = intervals(hits, totals[:, None, :], bootstrap)  # [heads][names]
    baselines = _Baselines(counts, bootstrap)
    margins = baselines.margins(hits, totals, scores, bootstrap)  # [heads][names]
    instances = dict(zip(counts.names, totals.sum(0).tolist(), strict=True))
    values = dict(zip(counts.names, baselines.values.tolist(), strict=True))
    more = counts.more()
    for h, head in enumerate(heads):
        measured = dict(zip(counts.names, scores[h], strict=True))
        measured |= {name: Interval(column[h], None, None) for name, column in more.items()}
        head.scores[kind.name] = measured
        for name in kind.met(measured, values, instances, criteria):
            margin = margins[h][counts.names.index(name)]
            role = Role(kind.name, name, measured[name], values[name], instances[name], margin)
            head.roles.append(role)
    lines = []
    for n, name in enumerate(counts.names):
        column = [row[n] for row in margins]
        lines.append(_best(kind, name, heads, baselines.intervals[n], column, instances[name]))
    return lines


class _Baselines:
    """A role's baselines, with intervals where they depend on the sentences drawn."""

    def __init__(self, counts: RoleCounts, bootstrap: Bootstrap) -> None:
        self.values = counts.baselines()  # [names]
        self.replicates = counts.baseline_replicates(bootstrap)  # [replicates, names] or None
        low = high = np.full_like(self.values, np.nan)
        if self.replicates is not None:
            low, high = bootstrap.bounds(self.replicates)
        (self.intervals,) = as_intervals(self.values[None], low[None], high[None])

    def margins(
        self,
        hits: np.ndarray,
        totals: np.ndarray,
        scores: list[list[Interval]],
        bootstrap: Bootstrap,
    ) -> list[list[Interval]]:
        """How far scores are above the baseline, `[heads][names]`."""
        if self.replicates is None:
            columns = self.values.tolist()
            return [[minus(s, b) for s, b in zip(row, columns, strict=True)] for row in scores]
        margin = divide(hits.sum(0), totals.sum(0)) - self.values  # [heads, names]
        drawn = bootstrap.ratios(hits, totals[:, None, :]) - self.replicates[:, None, :]
        return as_intervals(margin, *bootstrap.bounds(drawn))


def _best(
    kind: RoleKind,
    name: str,
    heads: Sequence[HeadRoles],
    baseline: Interval,
    margins: Sequence[Interval],
    instances: int,
) -> BestHead:
    """The head with the highest score under one name, the first among equals."""
    scores = [head.scores[kind.name][name] for head in heads]
    known = [h for h, score in enumerate(scores) if score.value is not None]
    best = max(known, key=lambda h: scores[h].value or 0.0, default=None)
    if best is None:
        nothing = Interval(None, None, None)
        site = heads[0].head.site if heads else ""
        return BestHead(kind.name, name, site, instances, None, nothing, baseline, nothing)
    head = heads[best].head
    return BestHead(
        kind.name, name, head.site, instances, head, scores[best], baseline, margins[best]
    )


def by_group(counts: Tensor, bootstrap: Bootstrap) -> np.ndarray:
    """Counts of the groups in use, `[groups, ...]`."""
    groups = bootstrap.draws.shape[1]
    return counts[:groups].cpu().numpy().astype(np.int64)


def minus(score: Interval, baseline: float) -> Interval:
    """A score above a fixed baseline."""
    return Interval(*(None if part is None else part - baseline for part in score))
