"""Training pairs joined at random, so that short sentences become longer text.

A corpus of short sentences asks little of an encoder's attention: a bag of words is almost enough
to translate it. With several sentences side by side, heads must work out which words belong
together.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np


class Pairs(Protocol):
    """What a collation needs of token shards: flat ids, and where each sentence begins."""

    source_ids: np.ndarray
    target_ids: np.ndarray
    source_offsets: np.ndarray
    target_offsets: np.ndarray


class SizedPairs(Pairs, Protocol):
    """Pairs and the length of every sentence, [pairs], EOS not counted."""

    @property
    def source_lengths(self) -> np.ndarray: ...

    @property
    def target_lengths(self) -> np.ndarray: ...


class Groups:
    """Pairs in groups; each group is read as one pair, its sentences end to end.

    source_lengths, target_lengths: [groups], tokens without EOS
    """

    def __init__(self, pairs: SizedPairs, members: np.ndarray, bounds: np.ndarray) -> None:
        """`members`: pair numbers, [pairs]; group i is members[bounds[i]:bounds[i + 1]]."""
        self._members, self._bounds = members, bounds
        self.source_lengths = _sums(pairs.source_lengths, members, bounds)
        self.target_lengths = _sums(pairs.target_lengths, members, bounds)

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def members(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of the given groups in order, and how many each group has, [groups]."""
        begin = self._bounds[groups]
        sizes = self._bounds[np.asarray(groups) + 1] - begin
        ends = np.cumsum(sizes)
        place = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begin - (ends - sizes), sizes)
        return self._members[place], sizes


class Singles(Groups):
    """Every pair alone, in order: `Groups` without an array for each pair."""

    def __init__(self, pairs: SizedPairs) -> None:
        self.source_lengths, self.target_lengths = pairs.source_lengths, pairs.target_lengths

    def __len__(self) -> int:
        return len(self.source_lengths)

    def members(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The groups themselves."""
        return groups, np.ones(len(groups), dtype=np.int64)


def join_pairs(pairs: SizedPairs, most: int, rng: np.random.Generator) -> Groups:
    """Every pair once, in groups of 1 to `most`, each number of pairs equally often.

    No group becomes longer than the longest single pair of the corpus, on either side: where it
    would, its pairs stay alone. So no position is trained that does not occur in the corpus.
    """
    count = len(pairs.source_lengths)
    if most <= 1:
        return Singles(pairs)
    members = rng.permutation(count)
    ends = np.cumsum(rng.integers(1, most + 1, size=count))
    bounds = np.concatenate(([0], ends[ends < count], [count]))
    groups = Groups(pairs, members, bounds)
    too_long = (groups.source_lengths > pairs.source_lengths.max()) | (
        groups.target_lengths > pairs.target_lengths.max()
    )
    cut = np.zeros(count + 1, dtype=bool)
    cut[bounds] = True
    cut[:-1] |= np.repeat(too_long, np.diff(bounds))
    return Groups(pairs, members, np.flatnonzero(cut))


def gather(
    flat: np.ndarray, offsets: np.ndarray, indices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The chosen sentences end to end, [tokens], and their lengths, [chosen].

    Sentence i is flat[offsets[i]:offsets[i + 1]]; the same one may be chosen several times.
    """
    begin = np.asarray(offsets[indices])
    lengths = np.asarray(offsets[np.asarray(indices) + 1]) - begin
    ends = np.cumsum(lengths)
    place = np.arange(ends[-1] if len(ends) else 0)
    place += np.repeat(begin - (ends - lengths), lengths)
    return np.asarray(flat[place]), lengths


def _sums(lengths: np.ndarray, members: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    if not len(members):
        return np.zeros(0, dtype=np.int64)
    return np.add.reduceat(np.asarray(lengths)[members], bounds[:-1], dtype=np.int64)
