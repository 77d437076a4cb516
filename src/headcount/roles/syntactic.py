"""Syntactic heads: the argmax word of one end of a dependency is its other end (Sec. 5.2).

Every instance of a relation counts once in each direction. A noun with two adjectives has two
instances of `amod`; it can look at one of them only, and so can the baseline.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.roles.relations import DIRECTIONS
from headcount.roles.words import word_attention

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


class SyntacticCounts:
    """How often each head looks along each relation, by group of sentences.

    hits: [groups, relations, directions, heads]
    """

    def __init__(
        self, groups: int, relations: int, heads: int, device: torch.device | str = "cpu"
    ) -> None:
        shape = (groups, relations, len(DIRECTIONS), heads)
        self.hits = torch.zeros(shape, dtype=torch.int32, device=device)

    def add(
        self,
        heads: slice,
        weights: Tensor,
        places: Tensor,
        words: Words,
        arcs: Arcs,
        groups: Tensor,
    ) -> None:
        """Count one layer's attention `[batch, heads, length, length]`.

        `places` `[batch, heads, length]` are the argmax tokens, EOS left out. Where every token is
        a word they are the argmax words, too; only the other sentences need word attention.
        """
        if not len(arcs.row):
            return
        if len(words.rows):
            found = word_attention(weights[words.rows], words.member).max(-1).indices
            places = places.clone()
            places[words.rows, :, : found.shape[-1]] = found
        self.add_places(heads, places, arcs, groups)

    def add_places(self, heads: slice, places: Tensor, arcs: Arcs, groups: Tensor) -> None:
        """Count argmax words `[batch, heads, words]` of one layer's heads."""
        slots = groups[arcs.row] * self.hits.shape[1] + arcs.relation  # [instances]
        counts = self.hits.flatten(0, 1)  # a view: [groups * relations, directions, heads]
        for i, direction in enumerate(DIRECTIONS):
            ends = (arcs.head, arcs.dependent)
            query, key = ends if direction.from_head else ends[::-1]
            hits = places[arcs.row, :, query] == key[:, None]  # [instances, heads]
            counts[:, i, heads].index_add_(0, slots, hits.to(counts.dtype))

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.hits]


def meets(accuracy: float, baseline: float, margin: float, relative: bool) -> bool:
    """Whether an accuracy is far enough above its baseline.

    `margin` is in points (0.10: ten points), or a share of the baseline where `relative`.
    """
    needed = baseline * (1 + margin) if relative else baseline + margin
    return accuracy >= needed - 1e-12
