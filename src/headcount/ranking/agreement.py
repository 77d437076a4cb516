"""How far measures agree on which heads matter: rank correlations, and what to expect by chance.

An interval says how much a correlation would change with other sentences. A p-value says how often
heads in a random order agree as well: with few heads that is often. Both are needed, as many
sentences make the interval narrow however few the heads are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from headcount.bootstrap import LEVEL
from headcount.heads import ALL_SITES, Head
from headcount.ranking.evidence import Evidence

REPLICATES = 1000
MIN_HEADS = 5
"""Fewer heads have no rank correlation here: of four heads, even a perfect one comes about by
chance once in 12 times (in either direction), which no number of sentences can change."""
_BLOCK = 4_000_000  # elements of one comparison of all heads with all heads


@dataclass(frozen=True)
class Agreement:
    """Rank correlations of two measures over some heads; None where one is constant.

    `group` is `enc.0` for a layer, `enc.*` for the mean over the layers of a site, `enc` for all
    heads of the site, `all` for all heads; `heads` are those that have a value of both measures.
    A measure that is normalised within layers (LRP) does not compare heads of different layers, so
    `enc.*` is the one to look at. Intervals are percentiles over bootstrap samples of the
    sentences. `p_value` is how often |Spearman| is as large when the heads of each layer (of the
    group, where it is not a mean over layers) are shuffled; at least 1 / (shuffles + 1).
    """

    first: str
    second: str
    group: str
    heads: int
    spearman: float | None
    spearman_interval: tuple[float, float] | None
    kendall: float | None
    kendall_interval: tuple[float, float] | None
    p_value: float | None = None


def comparisons(values: Tensor) -> Tensor:
    """Which of each pair of heads is larger: `[..., heads]` to signs `[..., heads, heads]`."""
    difference = values[..., :, None] - values[..., None, :]
    # The sign of NaN is 0: a head without a value would count as a tie with all others.
    return torch.where(difference.isnan(), math.nan, difference.sign()).float()


def spearman(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation from two `comparisons`, ties with their mean rank: `[...]`.

    The sum of a head's signs is twice its mean-free rank.
    """
    a, b = first.sum(-1, dtype=torch.float64), second.sum(-1, dtype=torch.float64)
    return (a * b).sum(-1) / ((a * a).sum(-1) * (b * b).sum(-1)).sqrt()


def kendall(first: Tensor, second: Tensor) -> Tensor:
    """Kendall's tau-b from two `comparisons`: `[...]`."""
    a, b = first.flatten(-2), second.flatten(-2)
    agree, in_a, in_b = ((x * y).sum(-1, dtype=torch.float64) for x, y in ((a, b), (a, a), (b, b)))
    return agree / (in_a * in_b).sqrt()


def bootstrap_draws(sentences: int, replicates: int = REPLICATES, seed: int = 1) -> Tensor:
    """How often each sentence is drawn in each replicate: `[replicates, sentences]`."""
    rng = torch.Generator().manual_seed(seed)
    picks = torch.randint(sentences, (replicates, sentences), generator=rng)
    draws = torch.zeros(replicates, sentences, dtype=torch.float64)
    return draws.scatter_add_(1, picks, torch.ones_like(picks, dtype=torch.float64))


def groups_of(heads: Sequence[Head]) -> dict[str, list[list[int]]]:
    """Groups of heads by name: numbers of the heads to correlate, in lists to take the mean over.

    Layers, the mean over the layers of a site, sites, and all heads; `MIN_HEADS` at least.
    """
    groups: dict[str, list[list[int]]] = {}
    sites = [site for site in ALL_SITES if any(head.site == site for head in heads)]
    for site in sites:
        of_site = [i for i, head in enumerate(heads) if head.site == site]
        layers = {
            f"{site}.{layer}": [i for i in of_site if heads[i].layer == layer]
            for layer in sorted({heads[i].layer for i in of_site})
        }
        layers = {name: part for name, part in layers.items() if len(part) >= MIN_HEADS}
        groups |= {name: [part] for name, part in layers.items()}
        if len(layers) > 1:
            groups[f"{site}.*"] = list(layers.values())
        groups[site] = [of_site]
    if len(sites) > 1:
        groups["all"] = [list(range(len(heads)))]
    return {name: parts for name, parts in groups.items() if len(parts[0]) >= MIN_HEADS}


def agreement(
    evidence: Mapping[str, Evidence],
    fixed: Mapping[str, Tensor],
    heads: Sequence[Head],
    replicates: int = REPLICATES,
    seed: int = 1,
) -> list[Agreement]:
    """Every two measures in every group. `fixed` columns `[heads]` do not vary with sentences."""
    values = {name: own.values()[None] for name, own in evidence.items()}
    values |= {name: column[None] for name, column in fixed.items()}
    samples: dict[str, Tensor] = {}
    if replicates and evidence:
        sentences = len(next(iter(evidence.values())).sums)
        draws = bootstrap_draws(sentences, replicates, seed)
        samples = {name: own.resampled(draws) for name, own in evidence.items()}
        samples |= {name: column.expand(replicates, -1) for name, column in fixed.items()}
    rows = []
    for group, members in groups_of(heads).items():
        for first, second in combinations(values, 2):
            parts = _with_values(members, values[first] + values[second])
            if not parts:
                rows.append(Agreement(first, second, group, 0, None, None, None, None))
                continue
            whole = correlations(values[first], values[second], parts)
            intervals: list[tuple[float, float] | None] = [None, None]
            if samples:
                resampled = correlations(samples[first], samples[second], parts)
                intervals = [_interval(column) for column in resampled]
            row = Agreement(
                first, second, group, sum(map(len, parts)),
                _finite(whole[0]), intervals[0], _finite(whole[1]), intervals[1],
                p_value(values[first][0], values[second][0], parts, replicates, seed),
            )  # fmt: skip
            rows.append(row)
    return rows


def correlations(first: Tensor, second: Tensor, parts: list[list[int]]) -> Tensor:
    """Spearman and Kendall of `[replicates, heads]`, the mean over `parts`: `[2, replicates]`.

    Layers whose heads are all alike have no correlation and are left out of the mean.
    """
    coefficients = []
    for heads in parts:
        size = max(1, _BLOCK // len(heads) ** 2)
        blocks = zip(first[:, heads].split(size), second[:, heads].split(size), strict=True)
        signs = ((comparisons(a), comparisons(b)) for a, b in blocks)
        coefficients.append(torch.cat([torch.stack([spearman(*s), kendall(*s)]) for s in signs], 1))
    return torch.stack(coefficients).nanmean(0)


def p_value(
    first: Tensor, second: Tensor, parts: list[list[int]], shuffles: int, seed: int
) -> float | None:
    """How often shuffled heads agree as well: the share of |Spearman| as large as that of `parts`.

    Values `[heads]`. The heads of each part are shuffled among themselves, the order that was seen
    counts as one of the shuffles, and a small tolerance keeps ties from depending on rounding.
    """
    rng = torch.Generator().manual_seed(seed)
    rhos = []
    for members in parts:
        a, b = (comparisons(x[members]).sum(-1, dtype=torch.float64) for x in (first, second))
        orders = torch.rand(shuffles, len(members), generator=rng).argsort(-1)
        orders = torch.cat([torch.arange(len(members))[None], orders])
        rhos.append((b[orders] @ a) / ((a @ a) * (b @ b)).sqrt())
    mean = torch.stack(rhos).nanmean(0).abs()  # [1 + shuffles], that of the heads as they are first
    if not shuffles or mean[0].isnan():
        return None
    return float((mean >= mean[0] - 1e-9).double().mean())


def _with_values(parts: list[list[int]], values: Tensor) -> list[list[int]]:
    """The heads that have a value, `[1, heads]` not NaN, where enough of a part do."""
    valued = [[i for i in part if not values[0, i].isnan()] for part in parts]
    return [part for part in valued if len(part) >= MIN_HEADS]


def _interval(samples: Tensor) -> tuple[float, float] | None:
    samples = samples[~samples.isnan()]
    if not len(samples):
        return None
    tail = (1 - LEVEL) / 2
    low, high = samples.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return low, high


def _finite(value: Tensor) -> float | None:
    number = float(value)
    return None if math.isnan(number) else number
