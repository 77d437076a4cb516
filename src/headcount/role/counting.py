"""One pass over the data: what every head looks at is counted, and heads get their roles (Sec. 5).

Attention is taken from the recording of one batch, counted and freed; only integers by group of
sentences are kept. Batches do not depend on the number of processes, and integers add up in any
order, so that several processes get exactly the same counts as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import Bootstrap, Interval, as_intervals, divide, intervals
from headcount.data.batches import padded
from headcount.heads import Head, HeadLayout
from headcount.model.attention import confidence_sums, largest_weights
from headcount.role import ROLES
from headcount.role.head_roles import BestHead, Criteria, HeadRoles, Role
from headcount.role.kind import RoleCounts, RoleKind, Setting, SiteBatch
from headcount.role.sentences import SentenceBatch

FIXED_POINT = 2.0**32


@dataclass(frozen=True)
class SiteHeads:
    """The heads of one site in the order of every count's head axis."""

    site: str
    heads: list[Head]
    layers: dict[int, slice]

    @classmethod
    def of(cls, layout: HeadLayout, site: str) -> SiteHeads:
        """All heads of a site, layer by layer; layers without heads have no slice."""
        layers: dict[int, slice] = {}
        first = 0
        for layer, indices in enumerate(layout.layers.get(site, ())):
            if indices:
                layers[layer] = slice(first, first + len(indices))
                first += len(indices)
        return cls(site, layout.heads([site]), layers)


class ConfidenceCounts:
    """The sum of the largest weights of each head, and of the queries behind it (Sec. 4).

    sums: [groups, heads], in integers of 2^-32, so that they too add up in any order
    queries: [groups]
    """

    def __init__(self, groups: int, heads: int, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros((groups, heads), dtype=torch.int64, device=device)
        self.queries = torch.zeros(groups, dtype=torch.int64, device=device)

    def begin(self, batch: SiteBatch) -> None:
        """Count a batch's queries, once for all layers."""
        self.queries.index_add_(0, batch.groups, batch.queries.sum(-1))

    def add(self, heads: slice, largest: Tensor, batch: SiteBatch) -> None:
        """Add the largest weights `[batch, heads, queries]` of one layer's heads."""
        sums, _ = confidence_sums(largest, batch.queries)  # [batch, heads]
        fixed = (sums.double() * FIXED_POINT).round().long()
        self.sums[:, heads].index_add_(0, batch.groups, fixed)

    def values(self) -> list[float | None]:
        """The confidence of each head."""
        number = int(self.queries.sum())
        if not number:
            return [None] * self.sums.shape[1]
        return [total / FIXED_POINT / number for total in self.sums.sum(0).tolist()]

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.sums, self.queries]


class SiteCounts:
    """What the heads of one site look at: confidence, and the counts of every role that applies."""

    def __init__(self, heads: SiteHeads, setting: Setting) -> None:
        """`setting.heads` is taken from `heads`."""
        setting = replace(setting, site=heads.site, heads=len(heads.heads))
        self.heads = heads
        self.confidence = ConfidenceCounts(setting.groups, setting.heads, setting.device)
        self.roles: dict[str, RoleCounts] = {
            name: kind.counts(setting)
            for name, kind in ROLES.items()
            if heads.site in kind.sites and all(map(setting.provides, kind.needs))
        }

    def add(
        self,
        sentences: SentenceBatch,
        weights: Mapping[int, Tensor],
        targets: Tensor | None = None,
    ) -> dict[int, Tensor]:
        """Count a batch; `weights[layer]` is `[batch, heads, queries, keys]` as recorded.

        `targets` `[batch, target]` is true for the tokens of the translations. Returns the argmax
        keys of each layer, `[batch, heads, queries]`.
        """
        batch = site_batch(self.heads.site, sentences, targets)
        if not batch.queries.any():
            return {}
        self.confidence.begin(batch)
        for counts in self.roles.values():
            counts.begin(batch)
        looked_at: dict[int, Tensor] = {}
        for layer, heads in self.heads.layers.items():
            attention = without_start(self.heads.site, weights[layer])
            largest, argmax = largest_weights(attention, batch.keys)
            self.confidence.add(heads, largest, batch)
            for counts in self.roles.values():
                counts.add(heads, attention, argmax, batch)
            looked_at[layer] = argmax
        return looked_at

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        of_roles = [tensor for counts in self.roles.values() for tensor in counts.tensors]
        return self.confidence.tensors + of_roles


def site_batch(site: str, sentences: SentenceBatch, targets: Tensor | None) -> SiteBatch:
    """A batch as a site sees it; `targets` `[batch, target]` is true for translations' tokens."""
    if site == "enc":
        queries = keys = sentences.real
    else:
        assert targets is not None
        queries, keys = targets, targets if site == "dec" else sentences.real
    return SiteBatch(queries, keys, sentences.groups, sentences)


def without_start(site: str, weights: Tensor) -> Tensor:
    """A layer's attention `[batch, heads, queries, keys]` whose queries stand for tokens.

    The decoder reads START first. In `dec` it is left out as query and key. In `cross` query t
    produces target token t, so that the last one, which produces EOS, is left out.
    """
    if site == "dec":
        return weights[:, :, 1:, 1:]
    return weights[:, :, :-1] if site == "cross" else weights


def padded_targets(
    targets: Sequence[Sequence[int]], *, pad: int, start: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Decoder input `[batch, 1 + target]`: START + tokens; and the tokens `[batch, target]`."""
    longest = max(map(len, targets), default=0)
    ids = padded([[start, *tokens] for tokens in targets], pad, device)
    real = [[i < len(tokens) for i in range(longest)] for tokens in targets]
    mask = torch.tensor(real, dtype=torch.bool, device=device).reshape(len(ids), longest)
    return ids, mask


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
