"""Joined training pairs: every pair once, sentences end to end, no new lengths."""

from __future__ import annotations

from itertools import islice
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.batches import updates
from headcount.data.joining import join_pairs

PAD, START, EOS = 0, 2, 3

sentences = st.lists(
    st.tuples(
        st.lists(st.integers(4, 99), min_size=1, max_size=12),
        st.lists(st.integers(4, 99), min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=40,
)


def shards(pairs: list[tuple[list[int], list[int]]]) -> SimpleNamespace:
    sides = {}
    for name, side in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        lengths = np.array([len(ids) for ids in side], dtype=np.int32)
        sides[f"{name}_lengths"] = lengths
        sides[f"{name}_offsets"] = np.concatenate(([0], np.cumsum(lengths)))
        sides[f"{name}_ids"] = np.array([i for ids in side for i in ids], dtype=np.uint16)
    return SimpleNamespace(**sides)


@given(sentences, st.integers(1, 5), st.integers(0, 3))
def test_every_pair_is_in_one_group_no_longer_than_the_longest_pair(pairs, most, seed):
    groups = join_pairs(shards(pairs), most, np.random.default_rng(seed))
    longest = [max(len(pair[side]) for pair in pairs) for side in (0, 1)]
    found = []
    for group in range(len(groups)):
        members, sizes = groups.members(np.array([group]))
        assert sizes.tolist() == [len(members)]
        assert 1 <= len(members) <= most
        lengths = [sum(len(pairs[i][side]) for i in members) for side in (0, 1)]
        assert lengths == [groups.source_lengths[group], groups.target_lengths[group]]
        assert lengths[0] <= longest[0]
        assert lengths[1] <= longest[1]
        found.extend(members.tolist())
    assert sorted(found) == list(range(len(pairs)))


def test_each_number_of_pairs_is_equally_frequent():
    lengths = np.ones(30_000, dtype=np.int32)
    lengths[0] = 100
    pairs = SimpleNamespace(source_lengths=lengths, target_lengths=lengths)
    groups = join_pairs(pairs, 4, np.random.default_rng(0))
    _, sizes = groups.members(np.arange(len(groups)))
    assert np.bincount(sizes, minlength=5)[1:] / len(groups) == pytest.approx([0.25] * 4, abs=0.01)


def stream(pairs: SimpleNamespace, **given: int):
    special = {"pad": PAD, "start": START, "eos": EOS}
    return updates(pairs, batch_tokens=60, device_tokens=30, seed=1, join=3, **special, **given)


def random_shards() -> SimpleNamespace:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 15, (80, 2))
    return shards([tuple(rng.integers(4, 99, n).tolist() for n in row) for row in lengths])


def test_a_joined_row_is_its_sentences_end_to_end():
    pairs = random_shards()
    joined = 0
    for update in islice(stream(pairs), 8):
        tokens = 0
        for micro in update.micro_batches:
            batch = micro.build()
            begin = 0
            for row, size in enumerate(micro.sizes):
                members = micro.indices[begin : begin + size]
                begin += size
                joined += size > 1
                for rows, ids, offsets in (
                    (batch.source, pairs.source_ids, pairs.source_offsets),
                    (batch.target_output, pairs.target_ids, pairs.target_offsets),
                ):
                    expected = [int(t) for i in members for t in ids[offsets[i] : offsets[i + 1]]]
                    written = rows[row].tolist()
                    assert written[: len(expected) + 1] == [*expected, EOS]
                    assert set(written[len(expected) + 1 :]) <= {PAD}
            tokens += batch.source_tokens
        assert tokens == update.source_tokens
    assert joined


@pytest.mark.parametrize("start", [0, 1, 9, 10, 11, 57])
def test_a_late_start_gives_what_an_uninterrupted_stream_gives(start):
    def told(update):
        parts = [(m.indices.tolist(), m.sizes.tolist()) for m in update.micro_batches]
        return update.number, update.epoch, update.index, parts

    pairs = random_shards()
    whole = [told(u) for u in islice(stream(pairs), start, start + 25)]
    assert [told(u) for u in islice(stream(pairs, start_update=start), 25)] == whole


def test_partners_change_from_epoch_to_epoch():
    company: list[set[tuple[int, ...]]] = [set(), set()]
    for update in islice(stream(random_shards()), 60):
        if update.epoch < 2:
            for micro in update.micro_batches:
                split = np.split(micro.indices, np.cumsum(micro.sizes)[:-1])
                company[update.epoch] |= {tuple(row) for row in split if len(row) > 1}
    assert company[0]
    assert company[0] != company[1]
