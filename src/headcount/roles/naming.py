"""From counts to roles: shares with their intervals, baselines, and the criteria met (Sec. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from headcount.heads import Head
from headcount.roles.counting import Counts
from headcount.roles.criteria import DIAGONAL, POSITIONAL, RARE, SYNTACTIC, Criteria, Role
from headcount.roles.cross import DiagonalCounts
from headcount.roles.offsets import RelativePositions, baseline_shares, most_frequent
from headcount.roles.positional import PositionalCounts, chance_shares
from headcount.roles.rare_words import RareWordCounts
from headcount.roles.relations import DIRECTIONS, Direction, arrow
from headcount.roles.syntactic import SyntacticCounts, meets
from headcount.roles.uncertainty import Bootstrap, Interval, divide, interval

NOTHING = Interval(None, None, None)


@dataclass
class HeadReport:
    """All that was measured of one head, and the roles that it meets.

    `shares[offset]` is the share of an offset; `accuracies[relation, direction]`; `rare` are the
    shares of the rarest and of the two rarest; `distances` the mean and mean absolute offset from
    the diagonal. What does not apply to its site stays empty.
    """

    head: Head
    confidence: float | None
    roles: list[Role] = field(default_factory=list)
    shares: dict[int, Interval] = field(default_factory=dict)
    accuracies: dict[tuple[str, str], Interval] = field(default_factory=dict)
    rare: tuple[Interval, Interval] | None = None
    distances: tuple[float, float] | None = None

    def best_offset(self) -> int | None:
        """The offset with the largest share, the nearest among equals."""
        known = {o: s.value for o, s in self.shares.items() if s.value is not None}
        return max(known, key=lambda o: (known[o], -abs(o), o)) if known else None


@dataclass(frozen=True)
class RelationReport:
    """One line of Table 1: the best head for a relation in one direction, and the baseline."""

    relation: str
    direction: Direction
    instances: int
    baseline: Interval
    baseline_offset: int | None
    best: Head | None
    accuracy: Interval
    margin: Interval

    def to_json(self) -> dict[str, Any]:
        """The line as JSON values."""
        return {
            "relation": self.relation,
            "direction": self.direction.name,
            "arrow": arrow(self.relation, self.direction),
            "instances": self.instances,
            "best_head": None if self.best is None else str(self.best),
            "accuracy": self.accuracy.value,
            "accuracy_low": self.accuracy.low,
            "accuracy_high": self.accuracy.high,
            "baseline": self.baseline.value,
            "baseline_low": self.baseline.low,
            "baseline_high": self.baseline.high,
            "baseline_offset": self.baseline_offset,
            "margin": self.margin.value,
            "margin_low": self.margin.low,
            "margin_high": self.margin.high,
        }


def head_reports(counts: Counts) -> list[HeadReport]:
    """A report for every head of a site, with its confidence only."""
    pairs = zip(counts.heads.heads, counts.confidence.values(), strict=True)
    return [HeadReport(head, confidence) for head, confidence in pairs]


def name_positional(
    reports: Sequence[HeadReport],
    counts: PositionalCounts,
    bootstrap: Bootstrap,
    criteria: Criteria,
    causal: bool = False,
) -> None:
    """Positional roles (Sec. 5.1); the baseline is chance."""
    hits, possible = by_group(counts.hits, bootstrap), by_group(counts.possible, bootstrap)
    chance = chance_shares(counts.lengths.cpu().numpy(), counts.reach, causal)
    _name_by_share(reports, hits, possible, chance, bootstrap, (criteria.threshold, POSITIONAL))


def name_diagonal(
    reports: Sequence[HeadReport],
    counts: DiagonalCounts,
    bootstrap: Bootstrap,
    criteria: Criteria,
) -> None:
    """The share of each offset from the diagonal, and the mean distance from it."""
    hits = by_group(counts.hits, bootstrap)
    queries = by_group(counts.queries, bootstrap)[:, None]  # [groups, 1]
    possible = np.repeat(queries, hits.shape[-1], 1)
    chance = counts.chance_shares()
    _name_by_share(reports, hits, possible, chance, bootstrap, (criteria.threshold, DIAGONAL))
    total = int(queries.sum())
    for report, (signed, absolute) in zip(reports, counts.distances.tolist(), strict=True):
        if total:
            report.distances = signed / total, absolute / total


def _name_by_share(
    reports: Sequence[HeadReport],
    hits: np.ndarray,
    possible: np.ndarray,
    baseline: np.ndarray,
    bootstrap: Bootstrap,
    criterion: tuple[float, str],
) -> None:
    """Shares `[groups, heads, offsets]` of `[groups, offsets]`, and the role of the largest one."""
    threshold, kind = criterion
    shares = intervals(hits, possible[:, None, :], bootstrap)  # of [heads, offsets]
    totals = possible.sum(0)
    reach = hits.shape[-1] // 2
    for report, row in zip(reports, shares, strict=True):
        report.shares = {offset - reach: row[offset] for offset in range(len(row))}
        best = report.best_offset()
        if best is None:
            continue
        score, chance = report.shares[best], float(baseline[best + reach])
        if score.value is not None and score.value >= threshold:
            instances = int(totals[best + reach])
            name = f"{best:+d}" if best else "0"
            role = Role(kind, name, score, chance, instances, minus(score, chance))
            report.roles.append(role)


class RareData(NamedTuple):
    """What the rare-word shares were measured on, and what chance would give."""

    sentences: int
    queries: int
    chance_rarest: float | None
    chance_two_rarest: float | None


def name_rare_words(
    reports: Sequence[HeadReport],
    counts: RareWordCounts,
    bootstrap: Bootstrap,
    criteria: Criteria,
) -> RareData:
    """Rare-words roles (Sec. 5.3)."""
    hits, queries = by_group(counts.hits, bootstrap), by_group(counts.queries, bootstrap)
    total = int(queries.sum())
    if not total:
        return RareData(0, 0, None, None)
    one, two = (int(number) / total for number in counts.candidates)
    shares = intervals(hits, queries[:, None, None], bootstrap)  # of [heads, 2]
    for report, (rarest, two_rarest) in zip(reports, shares, strict=True):
        report.rare = rarest, two_rarest
        share = two_rarest.value or 0.0
        if share >= criteria.rare_threshold and share >= two * criteria.rare_ratio:
            margin = minus(two_rarest, two)
            report.roles.append(Role(RARE, RARE, two_rarest, two, total, margin))
    return RareData(int(counts.sentences), total, one, two)


def name_syntactic(
    reports: Sequence[HeadReport],
    counts: SyntacticCounts,
    relations: Sequence[str],
    offsets: RelativePositions,
    bootstrap: Bootstrap,
    criteria: Criteria,
) -> list[RelationReport]:
    """Syntactic roles (Sec. 5.2), and the lines of Table 1."""
    hits = by_group(counts.hits, bootstrap)  # [groups, relations, directions, heads]
    lines: list[RelationReport] = []
    for number, relation in enumerate(relations):
        table = offsets.table(number)[1][: len(hits)]  # [groups, offsets]
        measured = _Relation.of(hits[:, number], table, bootstrap)
        offset = most_frequent(offsets.distribution(number))
        for d, direction in enumerate(DIRECTIONS):
            seen = offset if offset is None or direction.from_head else -offset
            for report, accuracy in zip(reports, measured.accuracies[d], strict=True):
                report.accuracies[relation, direction.name] = accuracy
            _add_roles(reports, measured, d, f"{relation} {arrow(relation, direction)}", criteria)
            lines.append(_table_line(reports, measured, d, relation, seen))
    return lines


@dataclass(frozen=True)
class _Relation:
    """Accuracies and margins of all heads for one relation, `[directions][heads]`."""

    instances: int
    baseline: Interval
    accuracies: list[list[Interval]]
    margins: list[list[Interval]]

    @classmethod
    def of(cls, hits: np.ndarray, table: np.ndarray, bootstrap: Bootstrap) -> _Relation:
        """From hits `[groups, directions, heads]` and offset counts `[groups, offsets]`.

        The baseline is found anew in every replicate, on the same sentences as the accuracy.
        """
        instances = table.sum(1)[:, None, None]  # [groups, 1, 1]
        baseline = float(baseline_shares(table.sum(0)))
        baselines = baseline_shares(bootstrap.sums(table))  # [replicates]
        margin = divide(hits.sum(0), instances.sum(0)) - baseline  # [directions, heads]
        margins = bootstrap.ratios(hits, instances) - baselines[:, None, None]
        return cls(
            int(table.sum()),
            interval(baseline, *map(float, bootstrap.bounds(baselines))),
            intervals(hits, instances, bootstrap),
            as_intervals(margin, *bootstrap.bounds(margins)),
        )


def _add_roles(
    reports: Sequence[HeadReport], measured: _Relation, d: int, name: str, criteria: Criteria
) -> None:
    """The role of every head that is far enough above the baseline in one direction."""
    baseline = measured.baseline.value
    for report, accuracy, margin in zip(
        reports, measured.accuracies[d], measured.margins[d], strict=True
    ):
        if accuracy.value is None or baseline is None:
            continue
        enough = measured.instances >= (criteria.least or 1)
        if enough and meets(accuracy.value, baseline, criteria.margin, criteria.relative):
            role = Role(SYNTACTIC, name, accuracy, baseline, measured.instances, margin)
            report.roles.append(role)


def _table_line(
    reports: Sequence[HeadReport], measured: _Relation, d: int, relation: str, offset: int | None
) -> RelationReport:
    """The line of Table 1 for one direction: its best head, the first among equals."""
    values = [accuracy.value for accuracy in measured.accuracies[d]]
    known = [h for h, value in enumerate(values) if value is not None]
    best = max(known, key=lambda h: values[h] or 0.0, default=None)
    return RelationReport(
        relation=relation,
        direction=DIRECTIONS[d],
        instances=measured.instances,
        baseline=measured.baseline,
        baseline_offset=offset,
        best=None if best is None else reports[best].head,
        accuracy=NOTHING if best is None else measured.accuracies[d][best],
        margin=NOTHING if best is None else measured.margins[d][best],
    )


def by_group(counts: Tensor, bootstrap: Bootstrap) -> np.ndarray:
    """Counts of the groups in use, `[groups, ...]`."""
    groups = bootstrap.draws.shape[1]
    return counts[:groups].cpu().numpy().astype(np.int64)


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


def minus(score: Interval, baseline: float) -> Interval:
    """A score above a fixed baseline."""
    return Interval(*(None if part is None else part - baseline for part in score))
