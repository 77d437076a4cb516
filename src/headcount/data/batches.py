"""Length-bucketed batches with a budget of source tokens per update (App. B.1).

"Translation pairs were batched together by approximate sequence length. Each training batch
contained [...] approximately 16000 source tokens", reached by accumulating the gradients of
micro-batches on any number of devices.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch

from headcount.data.joining import Groups, Pairs, SizedPairs, gather, join_pairs
from headcount.errors import UserError

# A micro-batch may hold this many times more padded target positions than source tokens. Without
# it one long translation of a short sentence would pad a thousand short rows to its own length.
TARGET_ROOM = 2

_LENGTH_BITS = 15

JOINING = 1  # separates the random numbers that join pairs from those that order them


@dataclass(frozen=True)
class Batch:
    """One micro-batch of pairs.

    source: [batch, source_length], tokens + EOS, padded
    target_input: [batch, target_length], START + tokens
    target_output: [batch, target_length], tokens + EOS
    indices: [pairs], the numbers of the pairs in their shards
    source_tokens, target_tokens: how many positions are not padding, EOS included
    """

    source: torch.Tensor
    target_input: torch.Tensor
    target_output: torch.Tensor
    indices: np.ndarray
    source_tokens: int
    target_tokens: int

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        return replace(
            self,
            source=self.source.to(device, non_blocking=True),
            target_input=self.target_input.to(device, non_blocking=True),
            target_output=self.target_output.to(device, non_blocking=True),
        )


@dataclass(frozen=True)
class MicroBatch:
    """The pairs of one micro-batch, not yet read from disk.

    indices: pair numbers in order; each row of the batch is the next `sizes[row]` of them, joined
    """

    indices: np.ndarray
    sizes: np.ndarray
    pairs: Pairs
    pad: int
    start: int
    eos: int

    def build(self) -> Batch:
        """Read and pad the pairs."""
        special = {"pad": self.pad, "start": self.start, "eos": self.eos}
        return collate(self.pairs, self.indices, sizes=self.sizes, **special)


@dataclass(frozen=True)
class Update:
    """One optimiser step: this rank's micro-batches, and the size of the step over all ranks.

    `number` counts updates from the start of training, `index` those of the epoch. A rank's list
    can be empty where the whole corpus has fewer sentences than there are ranks.
    """

    number: int
    epoch: int
    index: int
    micro_batches: list[MicroBatch]
    source_tokens: int
    target_tokens: int


def collate(
    pairs: Pairs,
    indices: np.ndarray,
    *,
    pad: int,
    start: int,
    eos: int,
    sizes: np.ndarray | None = None,
) -> Batch:
    """Read the pairs `indices` and pad them to the longest.

    With `sizes`, [batch], each row is made of that many pairs, one after the other.
    """
    source, source_lengths = gather(pairs.source_ids, pairs.source_offsets, indices)
    target, target_lengths = gather(pairs.target_ids, pairs.target_offsets, indices)
    if sizes is not None:
        begin = np.cumsum(sizes) - sizes
        source_lengths = np.add.reduceat(source_lengths, begin)
        target_lengths = np.add.reduceat(target_lengths, begin)
    target_output = _filled(target, target_lengths, pad=pad, eos=eos)
    target_input = np.full_like(target_output, pad)
    target_input[:, 0] = start
    target_input[:, 1:] = target_output[:, :-1]
    # The shift carries EOS along wherever a row is shorter than the longest.
    rows = np.flatnonzero(target_lengths + 1 < target_output.shape[1])
    target_input[rows, target_lengths[rows] + 1] = pad
    return Batch(
        source=torch.from_numpy(_filled(source, source_lengths, pad=pad, eos=eos)),
        target_input=torch.from_numpy(target_input),
        target_output=torch.from_numpy(target_output),
        indices=np.asarray(indices),
        source_tokens=int(source_lengths.sum()) + len(source_lengths),
        target_tokens=int(target_lengths.sum()) + len(target_lengths),
    )


def padded(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Rows of tokens to `[batch, longest]`."""
    longest = max(map(len, rows))
    filled = [[*row, *[pad] * (longest - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device)


def _filled(flat: np.ndarray, lengths: np.ndarray, *, pad: int, eos: int) -> np.ndarray:
    """[tokens] to [batch, longest + 1]: every row is its tokens, EOS, padding."""
    columns = np.arange(int(lengths.max(initial=0)) + 1)
    rows = np.full((len(lengths), len(columns)), pad, dtype=np.int64)
    rows[columns < lengths[:, None]] = flat
    rows[np.arange(len(lengths)), lengths] = eos
    return rows


def plan_epoch(
    source_lengths: np.ndarray,
    target_lengths: np.ndarray,
    batch_tokens: int,
    device_tokens: int,
    seed: int,
    epoch: int,
    world: int = 1,
) -> list[list[np.ndarray]]:
    """The updates of one epoch, each a list of micro-batches of pair indices.

    Lengths are without EOS, budgets count it. Every pair is in exactly one micro-batch. A
    micro-batch holds at most `device_tokens` padded source tokens (a longer sentence is alone in
    its own), and an update about `batch_tokens`: the smallest sufficient number of equal
    micro-batches, at least one per rank. So where batch_tokens / device_tokens < `world`,
    micro-batches shrink to batch_tokens / world; otherwise the plan does not depend on `world`,
    and any number of devices makes the same updates.

    The number of updates is the same in every epoch, as only pairs of equal lengths change places.
    A plan takes 4 bytes per pair, and about 30 while it is being computed.
    """
    rng = np.random.default_rng([seed, epoch])
    if not len(source_lengths):
        return []
    order = _bucketed(np.asarray(source_lengths), np.asarray(target_lengths), rng)
    source, target = _with_eos(source_lengths, order), _with_eos(target_lengths, order)
    total = int(source.sum(dtype=np.int64))
    accumulated = parts_of_update(batch_tokens, device_tokens, world)
    budget = math.ceil(total / (math.ceil(total / batch_tokens) * accumulated))
    bounds = _cut((source, budget), (target, TARGET_ROOM * budget))
    micro_batches = [order[begin:end] for begin, end in pairwise(bounds)]
    tokens = np.add.reduceat(source, bounds[:-1], dtype=np.int64)
    return [[micro_batches[i] for i in group] for group in _grouped(tokens, accumulated, rng)]


def parts_of_update(batch_tokens: int, device_tokens: int, world: int) -> int:
    """How many micro-batches an update has: enough for its tokens, and one per rank."""
    return max(math.ceil(batch_tokens / device_tokens), world)


def _grouped(tokens: np.ndarray, size: int, rng: np.random.Generator) -> list[list[int]]:
    """Micro-batches of the given tokens in random groups of `size`, of about as many tokens each.

    A few micro-batches are far from full (the last one, and those with long targets). None of them
    may become an update of its own: they, and what is left over by the division, are added one by
    one to the group that is smallest so far.
    """
    shuffled = rng.permutation(len(tokens))
    full = tokens[shuffled] >= tokens.mean() / 2
    large = shuffled[full]
    divided = max(len(large) // size, 1) * size
    groups = [large[i : i + size].tolist() for i in range(0, min(divided, len(large)), size)]
    sizes = [(int(tokens[group].sum()), number) for number, group in enumerate(groups)]
    heapq.heapify(sizes)
    for i in np.concatenate((large[divided:], shuffled[~full])).tolist():
        smallest, number = sizes[0]
        groups[number].append(i)
        heapq.heapreplace(sizes, (smallest + int(tokens[i]), number))
    return groups


def _with_eos(lengths: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Lengths in this order, EOS counted: [pairs] int32."""
    tokens: np.ndarray = np.asarray(lengths)[order].astype(np.int32, copy=False)
    tokens += 1
    return tokens


def _bucketed(source: np.ndarray, target: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Pair indices by source length, then target length, pairs of equal lengths shuffled.

    Target lengths rise in one source length and fall in the next, so that a micro-batch across
    the border of two source lengths still has similar target lengths. Lengths are without EOS.
    Written to save memory: arrays of 4 bytes per pair, and keys that change in place.
    """
    longest = (1 << _LENGTH_BITS) - 1
    shuffle = np.arange(len(source), dtype=np.int32)
    rng.shuffle(shuffle)
    code = np.minimum(source, longest - 1).astype(np.int32, copy=False)
    code += 1
    minor = np.minimum(target, longest - 1).astype(np.int32, copy=False)
    minor += 1
    np.subtract(longest, minor, out=minor, where=code % 2 == 0)
    code <<= _LENGTH_BITS
    code |= minor
    del minor
    # One sort of unique keys, the shuffled rank in the low half: fast, and the same everywhere.
    keys = code[shuffle].astype(np.int64)
    del code
    keys <<= 32
    keys |= np.arange(len(keys), dtype=np.int32)
    keys.sort()
    keys &= 0xFFFFFFFF
    return np.asarray(shuffle[keys])


def _cut(*sides: tuple[np.ndarray, int]) -> list[int]:
    """Bounds of micro-batches over sentences in order, their padded size within every budget.

    Each side is its lengths, [sentences], and the most padded positions that it may take.
    """
    first, budget = sides[0]
    bounds = [0]
    while (begin := bounds[-1]) < len(first):
        size = max(budget // int(first[begin]), 1)
        for lengths, room in sides:
            width = np.maximum.accumulate(lengths[begin : begin + size])
            positions = np.arange(1, len(width) + 1) * width
            size = int(np.searchsorted(positions, room, side="right"))
        bounds.append(begin + max(size, 1))
    return bounds


def evaluation_batches(lengths: Sequence[int] | np.ndarray, device_tokens: int) -> list[np.ndarray]:
    """Index arrays that cover all sentences, by length, at most `device_tokens` padded tokens each.

    Lengths are without EOS, the budget counts it. The same lengths give the same batches.
    """
    tokens = np.asarray(lengths, dtype=np.int64) + 1
    order = np.argsort(tokens, kind="stable")
    bounds = _cut((tokens[order], device_tokens))
    return [order[begin:end] for begin, end in pairwise(bounds)]


def padding_waste(
    plan: Sequence[Sequence[np.ndarray]], source_lengths: np.ndarray, target_lengths: np.ndarray
) -> tuple[float, float]:
    """The share of positions that are padding, on the source and on the target side."""

    def waste(lengths: np.ndarray) -> float:
        tokens = np.asarray(lengths)
        positions = sum(
            len(indices) * (int(tokens[indices].max()) + 1) for update in plan for indices in update
        )
        return 1 - (int(tokens.sum(dtype=np.int64)) + len(tokens)) / max(positions, 1)

    return waste(source_lengths), waste(target_lengths)


def updates(
    shards: SizedPairs,
    *,
    batch_tokens: int,
    device_tokens: int,
    seed: int,
    pad: int,
    start: int,
    eos: int,
    start_update: int = 0,
    rank: int = 0,
    world: int = 1,
    join: int = 1,
    planned_for: int = 0,
) -> Iterator[Update]:
    """An endless stream of updates, epoch after epoch, from update number `start_update` on.

    Earlier updates are not read, and the stream is the same as if it had not been interrupted. Of
    each update a rank gets micro-batches rank, rank + world, ... With `join`, up to that many pairs
    are joined into one (`join_pairs`), different ones in every epoch. `planned_for` is the `world`
    that the stream began with, if it was another one: micro-batches stay as they were cut for it.
    """
    if not len(shards.source_lengths):
        raise UserError("There are no sentence pairs to train on.", "Check the training files.")

    def plan(epoch: int) -> tuple[Groups, list[list[np.ndarray]]]:
        groups = join_pairs(shards, join, np.random.default_rng([seed, epoch, JOINING]))
        lengths = groups.source_lengths, groups.target_lengths
        cut_for = planned_for or world
        return groups, plan_epoch(*lengths, batch_tokens, device_tokens, seed, epoch, cut_for)

    epoch, begin = 0, 0  # `begin`: the number of the epoch's first update
    groups, planned = plan(0)
    if join <= 1:
        epoch = start_update // len(planned)  # all epochs have as many updates
        begin = epoch * len(planned)
        groups, planned = plan(epoch) if epoch else (groups, planned)
    while True:
        for index in range(max(start_update - begin, 0), len(planned)):
            rows = np.concatenate(planned[index])
            yield Update(
                number=begin + index,
                epoch=epoch,
                index=index,
                micro_batches=[
                    MicroBatch(*groups.members(chosen), shards, pad, start, eos)
                    for chosen in planned[index][rank::world]
                ],
                source_tokens=int(groups.source_lengths[rows].sum()) + len(rows),
                target_tokens=int(groups.target_lengths[rows].sum()) + len(rows),
            )
        epoch, begin = epoch + 1, begin + len(planned)
        groups, planned = plan(epoch)
