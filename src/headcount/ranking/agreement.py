"""How far measures agree on which heads matter: rank correlations with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from headcount.heads import SITES, Head
from headcount.ranking.evidence import Evidence

REPLICATES = 1000
LEVEL = 0.95
_BLOCK = 4_000_000  # elements of one comparison of all heads with all heads


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of two measures over some heads; None where one is constant.

    `group` is `enc.0` for a layer, `enc` for a site, `all` for all heads. Intervals are percentiles
    over bootstrap samples of the sentences.
    """

    first: str
    second: str
    group: str
    heads: int
    spearman: float | None
    spearman_interval: tuple[float, float] | None
    kendall: float | None
    kendall_interval: tuple[float, float] | None


def comparisons(values: Tensor) -> Tensor:
    """Which of each pair of heads is larger: `[..., heads]` to signs `[..., heads, heads]`."""
    return (values[..., :, None] - values[..., None, :]).sign().float()


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation from two `comparisons`, ties with their mean rank: `[...]`.

    The sum of a head's signs is twice its mean-free rank.
    """
    a, b = first.sum(-1, dtype=torch.float64), second.sum(-1, dtype=torch.float64)
    return (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()


def kendall(first: Tensor, second: Tensor) -> Tensor:
    """Kendall's tau-b from two `comparisons`: `[...]`."""
    a, b = first.flatten(-2), second.flatten(-2)
    return (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()


def bootstrap_draws(sentences: int, replicates: int = REPLICATES, seed: int = 1) -> Tensor:
    """How often each sentence is drawn in each replicate: `[replicates, sentences]`."""
    chance = torch.Generator().manual_seed(seed)
    picks = torch.randint(sentences, (replicates, sentences), generator=chance)
    draws = torch.zeros(replicates, sentences, dtype=torch.float64)
    return draws.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))


def groups_of(heads: Sequence[Head]) -> dict[str, list[int]]:
    """Layers, sites, and all heads, with the places of their heads; single heads make no group."""
    groups: dict[str, list[int]] = {}
    for site in SITES:
        of_site = [i for i, head in enumerate(heads) if head.site == site]
        for layer in sorted({heads[i].layer for i in of_site}):
            groups[f"{site}.{layer}"] = [i for i in of_site if heads[i].layer == layer]
        groups[site] = of_site
    groups["all"] = list(range(len(heads)))
    if sum(groups[site] != [] for site in SITES) == 1:
        del groups["all"]  # it would repeat the only site
    return {name: places for name, places in groups.items() if len(places) > 1}


def agreement(
    evidence: Mapping[str, Evidence],
    fixed: Mapping[str, Tensor],
    heads: Sequence[Head],
    replicates: int = REPLICATES,
    seed: int = 1,
) -> list[Agreement]:
    """Every two measures in every group. `fixed` columns `[heads]` do not vary with sentences."""
    values = {name: found.values() for name, found in evidence.items()} | dict(fixed)
    if replicates and evidence:
        sentences = len(next(iter(evidence.values())).sums)
        draws = bootstrap_draws(sentences, replicates, seed)
    else:
        draws = torch.zeros(0, 1, dtype=torch.float64)
    samples = {name: found.resampled(draws) for name, found in evidence.items() if len(draws)}
    samples |= {name: column.expand(len(draws), -1) for name, column in fixed.items()}
    rows = []
    for group, places in groups_of(heads).items():
        for first, second in combinations(values, 2):
            whole = _correlations(values[first][places], values[second][places])
            intervals: list[tuple[float, float] | None] = [None, None]
            if len(draws):
                pairs = list(_blocks(samples[first][:, places], samples[second][:, places]))
                columns = (torch.cat(parts) for parts in zip(*pairs, strict=True))
                intervals = [_interval(column) for column in columns]
            row = Agreement(
                first, second, group, len(places),
                _finite(whole[0]), intervals[0], _finite(whole[1]), intervals[1],
            )  # fmt: skip
            rows.append(row)
    return rows


def _correlations(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    a, b = comparisons(first), comparisons(second)
    return spearman(a, b), kendall(a, b)


def _blocks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Correlations of replicates `[replicates, heads]`, so many at a time as memory allows."""
    size = max(1, _BLOCK // first.shape[1] ** 2)
    for a, b in zip(first.split(size), second.split(size), strict=True):
        yield _correlations(a, b)


def _interval(samples: Tensor) -> tuple[float, float] | None:
    samples = samples[~samples.isnan()].double()
    if not len(samples):
        return None
    tail = (1 - LEVEL) / 2
    low, high = samples.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
