"""The relevance of a head: the sum over its neurons, normalised over its layer (App. A.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.distribution import Workers
from headcount.heads import BLOCKS, stack_of
from headcount.model.recording import Recording
from headcount.model.transformer import Transformer
from headcount.ranking.evidence import Place, Sums
from headcount.ranking.lrp.audit import MEASURED, AuditRow, audit_rows, stations
from headcount.ranking.lrp.descent import Propagated
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.rules import LrpOptions

FLOOR = 0.01
"""Below this share of the sum of absolute values, a signed sum cannot be divided by."""


@dataclass(frozen=True)
class HeadRelevance:
    """Of each sentence: normalised relevance summed over its steps, and how many steps counted.

    `sums` and `counts` `[batch, heads]`. `unusable` `[groups]` counts the steps in which the heads
    of a group (`share_groups`) add up to (almost) nothing: their shares mean nothing and are left
    out.
    """

    sums: Tensor
    counts: Tensor
    unusable: Tensor


@dataclass(frozen=True)
class RelevanceReport:
    """The result over all batches: where relevance went, steps, and steps left out by layer."""

    audit: list[AuditRow]
    steps: int
    unusable: dict[str, int]


class RelevanceSums:
    """LRP of one ranking: relevance batch by batch, and the audit of all of them."""

    def __init__(
        self, model: Transformer, options: LrpOptions, attentions: Sequence[Place]
    ) -> None:
        self.attentions, self.options = list(attentions), options
        source = any(stack_of(site) == "enc" for site, _ in attentions)
        self.propagation = Propagation(model, options, source=source, places=attentions)
        self.stations = stations(model, source)
        self.steps = torch.zeros(1, dtype=torch.float64)
        self.unusable = torch.zeros(len(share_groups(attentions)), dtype=torch.float64)
        self.sums = torch.zeros(len(MEASURED), len(self.stations), dtype=torch.float64)
        self.largest = torch.zeros(len(self.stations), dtype=torch.float64)
        self.last: tuple[Recording, Propagated] | None = None

    def add(
        self,
        recording: Recording,
        steps: Sequence[int],
        signed: bool = False,
        positions: Tensor | None = None,
    ) -> Sums:
        """Relevance of a recorded batch whose sentences have these numbers of generation steps.

        `positions` as in `Propagation.propagate`.
        `signed` uses signed sums regardless of the options. The same recording is not propagated a
        second time.
        """
        if self.last is None or self.last[0] is not recording:
            self.last = recording, self._audited(recording, steps, positions)
        propagated = self.last[1]
        values = propagated.signed if signed else propagated.heads
        normalise = "signed" if signed else self.options.normalise
        relevance = head_relevance(values, self.attentions, steps, normalise)
        if not signed:
            self.unusable += relevance.unusable.double().cpu()
        return relevance.sums, relevance.counts

    def _audited(
        self, recording: Recording, steps: Sequence[int], positions: Tensor | None
    ) -> Propagated:
        propagated = self.propagation.propagate(recording, steps, positions=positions)
        self.steps += sum(steps)
        table = propagated.audit.table()
        self.sums += table[:-1]
        self.largest = torch.maximum(self.largest, table[-1])
        return propagated

    def report(self, workers: Workers) -> RelevanceReport:
        """The sums over all processes."""
        largest = torch.zeros(workers.world, len(self.stations), dtype=torch.float64)
        largest[workers.rank] = self.largest
        for tensor in (self.sums, largest, self.steps, self.unusable):
            tensor.copy_(workers.sum(tensor.to(workers.device)))
        table = torch.cat([self.sums, largest.amax(0, keepdim=True)])
        steps = int(self.steps)
        names = share_groups(self.attentions)
        unusable = dict(zip(names, map(int, self.unusable.tolist()), strict=True))
        return RelevanceReport(audit_rows(self.stations, table, steps), steps, unusable)


def head_relevance(
    propagated: Mapping[Place, Tensor],
    attentions: Sequence[Place],
    steps: Sequence[int],
    normalise: str,
) -> HeadRelevance:
    """Shares of the heads of each group, for each sentence summed over its steps.

    From the relevance of heads that was propagated, `[batch, steps, heads]` each.
    """
    sums, counts, unusable = [], [], []
    for places in share_groups(attentions).values():
        # [batch, steps, heads]
        relevance = torch.cat([propagated[place] for place in places], -1).double()
        shares, usable = layer_shares(relevance, normalise)
        real = _real(steps, relevance.device)
        unusable.append((real & ~usable).sum())
        usable &= real
        sums.append((shares * usable[..., None]).sum(1))
        counts.append(usable.sum(1, keepdim=True).expand_as(sums[-1]))
    return HeadRelevance(torch.cat(sums, 1), torch.cat(counts, 1), torch.stack(unusable))


def share_groups(places: Sequence[Place]) -> dict[str, list[Place]]:
    """What shares relevance, by name: the heads of an attention, the units of a network.

    Whole blocks share that of their stack: two or three blocks of one layer would say little.
    """
    groups: dict[str, list[Place]] = {}
    for site, layer in places:
        name = site if site in BLOCKS else f"{site}.{layer}"
        groups.setdefault(name, []).append((site, layer))
    return groups


def layer_shares(relevance: Tensor, normalise: str) -> tuple[Tensor, Tensor]:
    """Relevance `[..., heads]` of one layer's heads to shares that add up to 1, where they can.

    `signed` divides by the sum, so that a head that lowers the logit gets a negative share
    and others may get more than 1; otherwise by the sum of absolute values. Also tells in which
    rows, `[...]`, that sum is large enough.
    """
    sizes = relevance.abs()
    whole = sizes.sum(-1)
    if normalise == "signed":
        total, parts = relevance.sum(-1), relevance
    else:
        total, parts = whole, sizes
    usable = (total.abs() > FLOOR * whole) & torch.isfinite(whole)
    safe = torch.where(usable, total, 1.0)
    return torch.where(usable[..., None], parts / safe[..., None], 0.0), usable


def _real(steps: Sequence[int], device: torch.device) -> Tensor:
    counts = torch.tensor(list(steps), device=device)[:, None]
    return torch.arange(max(steps), device=device) < counts
