"""The relevance of a head: the sum over its neurons, normalised over its layer (App. A.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.ranking.evidence import Place
from headcount.ranking.lrp.audit import Audit
from headcount.ranking.lrp.descent import Propagated

FLOOR = 0.01
"""Below this share of the sum of absolute values a signed sum is no measure of a layer's whole."""


@dataclass(frozen=True)
class HeadRelevance:
    """Of each sentence: normalised relevance summed over its steps, and how many steps counted.

    `sums` and `counts` `[batch, heads]`. `unusable` `[attentions]` counts the steps in which the
    heads of an attention add up to (almost) nothing: their shares mean nothing and are left out.
    """

    sums: Tensor
    counts: Tensor
    unusable: Tensor
    audit: Audit


def head_relevance(
    propagated: Propagated, places: Sequence[Place], steps: Sequence[int], normalise: str
) -> HeadRelevance:
    """Shares of the heads of each attention, for each sentence summed over its steps."""
    sums, counts, unusable = [], [], []
    for place in places:
        relevance = propagated.heads[place].double()  # [batch, steps, heads]
        shares, usable = layer_shares(relevance, normalise)
        real = _real(steps, relevance.device)
        unusable.append((real & ~usable).sum())
        usable &= real
        sums.append((shares * usable[..., None]).sum(1))
        counts.append(usable.sum(1, keepdim=True).expand_as(sums[-1]))
    return HeadRelevance(
        torch.cat(sums, 1), torch.cat(counts, 1), torch.stack(unusable), propagated.audit
    )


def layer_shares(relevance: Tensor, normalise: str) -> tuple[Tensor, Tensor]:
    """Relevance `[..., heads]` of one layer's heads to shares that add up to 1, where they can.

    `signed` divides by the sum, so that a head that speaks against the logit gets a negative share
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
