"""Syntactic heads: the argmax word of one end of a dependency is its other end (Sec. 5.2).

Every instance of a relation counts once in each direction. A noun with two adjectives has two
instances of `amod`; a head can look at only one of them, and so can the baseline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import Bootstrap, Interval
from headcount.role.alignment import word_attention
from headcount.role.kind import PARSES, RoleCounts, RoleKind, Scores, Setting, SiteBatch
from headcount.role.relations import (
    DIRECTIONS,
    ENDS_IN_WORDS,
    arrow,
    baseline_shares,
    most_frequent,
)

if TYPE_CHECKING:
    from headcount.role.head_roles import Criteria
    from headcount.role.sentences import ReadySentence

MARGIN = 0.10


@dataclass(frozen=True)
class Words:
    """The sentences of a batch whose words are not its tokens, one by one.

    rows: [rows], these sentences; member: [rows, length, words], which pieces are which words'
    """

    rows: Tensor
    member: Tensor


@dataclass(frozen=True)
class Arcs:
    """The instances of a batch, each `[instances]`.

    row: the sentence in the batch; head, dependent: words of that sentence; relation: its number.
    """

    row: Tensor
    head: Tensor
    dependent: Tensor
    relation: Tensor


class SyntacticCounts(RoleCounts):
    """How often each head looks along each relation in each direction: `nsubj v → s`."""

    def __init__(self, setting: Setting) -> None:
        self.setting, relations = setting, setting.relations
        self.names = [
            relation_name(r, direction.name) for r in relations for direction in DIRECTIONS
        ]
        self.allocate(setting)
        # Stored as [groups * relations, directions, heads], so that one index finds an instance.
        shape = (setting.groups * len(relations), len(DIRECTIONS), setting.heads)
        self._stored = torch.zeros(shape, dtype=torch.int32, device=setting.device)
        self.hits = self._stored.view(setting.groups, -1, setting.heads).transpose(1, 2)

    def begin(self, batch: SiteBatch) -> None:
        """Count the instances; both directions have the same."""
        arcs = batch.sentences.arcs
        slots = batch.groups[arcs.row] * len(self.names) + arcs.relation * len(DIRECTIONS)
        ones = torch.ones_like(slots)
        for direction in range(len(DIRECTIONS)):
            self.totals.view(-1).index_add_(0, slots + direction, ones)

    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads.

        Where every token is a word, argmax tokens are argmax words; only the other sentences need
        word attention.
        """
        arcs, words = batch.sentences.arcs, batch.sentences.words
        if not len(arcs.row):
            return
        if len(words.rows):
            by_word = word_attention(weights[words.rows], words.member).max(-1).indices
            argmax = argmax.clone()
            argmax[words.rows, :, : by_word.shape[-1]] = by_word
        self.add_words(heads, argmax, arcs, batch.groups)

    def add_words(self, heads: slice, argmax: Tensor, arcs: Arcs, groups: Tensor) -> None:
        """Count argmax words `[batch, heads, words]` of one layer's heads."""
        slots = groups[arcs.row] * len(self.setting.relations) + arcs.relation  # [instances]
        for i, direction in enumerate(DIRECTIONS):
            ends = (arcs.head, arcs.dependent)
            query, key = ends if direction.from_head else ends[::-1]
            hits = argmax[arcs.row, :, query] == key[:, None]  # [instances, heads]
            self._stored[:, i, heads].index_add_(0, slots, hits.to(self._stored.dtype))

    def baselines(self) -> np.ndarray:
        """The share of each relation's most frequent offset, the same in both directions."""
        return self._of_offsets(lambda table: table.sum(0))

    def baseline_replicates(self, bootstrap: Bootstrap) -> np.ndarray:
        """The baseline of every replicate, on the same sentences as the accuracy."""
        groups = bootstrap.draws.shape[1]
        return self._of_offsets(lambda table: bootstrap.sums(table[:groups]))

    def _of_offsets(self, total: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Baselines `[..., names]` from the counts of offsets `[groups, offsets]`, summed up."""
        offsets = self.setting.offsets
        assert offsets is not None
        tables = [offsets.table(number)[1] for number in range(len(self.setting.relations))]
        shares = [baseline_shares(total(table)) for table in tables]
        return np.stack([share for share in shares for _ in DIRECTIONS], -1)

    def queries(self, sentence: ReadySentence, name: int) -> list[int]:
        """The tokens at the end of the relation that its direction looks from."""
        relation, direction = divmod(name, len(DIRECTIONS))
        ends = {
            head if DIRECTIONS[direction].from_head else dependent
            for head, dependent, kind in sentence.arcs
            if kind == relation
        }
        return [place for place, unit in enumerate(sentence.units or ()) if unit in ends]

    def baseline_hits(self, sample: Sequence[ReadySentence], name: int) -> list[int]:
        """The instances at the offset that is the most frequent one in the whole text."""
        relation = name // len(DIRECTIONS)
        assert self.setting.offsets is not None
        usual = most_frequent(self.setting.offsets.distribution(relation))
        return [
            sum(kind == relation and dependent - head == usual for head, dependent, kind in arcs)
            for arcs in (sentence.arcs for sentence in sample)
        ]

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self._stored, self.totals]


class Syntactic(RoleKind):
    """Heads that find one end of a dependency from the other better than position alone does."""

    name = "syntactic"
    help = "looks from one end of a dependency to the other, such as from a verb to its subject"
    needs = (PARSES,)
    colour = "#1f8a5b"
    letter = "S"

    def counts(self, setting: Setting) -> SyntacticCounts:
        """Empty counts for one site."""
        return SyntacticCounts(setting)

    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """Every relation and direction whose accuracy is far enough above the baseline."""
        return [
            name
            for name, baseline in baselines.items()
            if (accuracy := scores[name].value) is not None
            and instances[name] >= (criteria.least or 1)
            and meets(accuracy, baseline, criteria.margin, criteria.relative)
        ]

    def sentence(self, name: str) -> str:
        """From where to where the head looks: `looks from the verb to its subject`."""
        relation, direction = relation_and_direction(name)
        ends = ENDS_IN_WORDS.get(relation, (f"head of {relation}", f"dependent of {relation}"))
        first, second = ends if direction == DIRECTIONS[0].name else ends[::-1]
        return f"looks from the {first} to its {second}"

    @property
    def baseline_is(self) -> str:
        """What the baseline is."""
        return "baseline"

    def label(self, name: str) -> str:
        """The arrow alone, short: `v→s`."""
        return short_arrow(name.split(" ", 1)[-1])

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The accuracy for each relation and direction."""
        return {"_".join(key): accuracy.value for key, accuracy in accuracies(scores).items()}


def relation_name(relation: str, direction: str) -> str:
    """`nsubj v → s`: the name of a relation in one direction."""
    chosen = next(d for d in DIRECTIONS if d.name == direction)
    return f"{relation} {arrow(relation, chosen)}"


def relation_and_direction(name: str) -> tuple[str, str]:
    """`nsubj v → s` as `nsubj`, `head_to_dependent`."""
    relation, shown = name.split(" ", 1)
    for direction in DIRECTIONS:
        if arrow(relation, direction) == shown:
            return relation, direction.name
    raise ValueError(f"'{name}' is not a relation with a direction")


def accuracies(scores: Scores) -> dict[tuple[str, str], Interval]:
    """The accuracy for each relation and direction among a head's scores."""
    return {relation_and_direction(name): accuracy for name, accuracy in scores.items()}


# The ends of a relation, short enough for a cell of a figure.
_SHORT = {"adj.m.": "adj", "adv.m.": "adv", "noun": "n"}


def short_arrow(arrow: str) -> str:
    """`noun → adj.m.` as `n→adj`."""
    return "→".join(_SHORT.get(end, end) for end in arrow.split(" → "))


def meets(accuracy: float, baseline: float, margin: float, relative: bool) -> bool:
    """Whether an accuracy is far enough above its baseline.

    `margin` is in points (0.10: ten points), or a share of the baseline where `relative`.
    """
    needed = baseline * (1 + margin) if relative else baseline + margin
    return accuracy >= needed - 1e-12
