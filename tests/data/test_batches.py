"""Batches: every pair once an epoch, within its budgets, and the same after any interruption."""

from __future__ import annotations

from itertools import islice, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from headcount.data import batches
from headcount.data.batches import (
    TARGET_ROOM,
    Batch,
    Update,
    collate,
    evaluation_batches,
    padding_waste,
    plan_epoch,
    updates,
)
from headcount.errors import UserError

PAD, START, EOS = 0, 2, 3


def pairs_of(sentences: list[tuple[list[int], list[int]]]) -> SimpleNamespace:
    """Pairs in memory, in the form in which shards hold them on disk."""
    sides = {}
    for name, side in zip(("source", "target"), zip(*sentences, strict=True), strict=True):
        lengths = np.array([len(ids) for ids in side], dtype=np.int32)
        sides[f"{name}_lengths"] = lengths
        sides[f"{name}_offsets"] = np.concatenate(([0], np.cumsum(lengths)))
        sides[f"{name}_ids"] = np.array([id_ for ids in side for id_ in ids], dtype=np.uint16)
    return SimpleNamespace(**sides)


def random_pairs(count: int, seed: int = 0) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    source = rng.integers(1, 30, count)
    target = np.maximum(source + rng.integers(-3, 4, count), 1)
    return pairs_of(
        [
            (rng.integers(4, 99, m).tolist(), rng.integers(4, 99, n).tolist())
            for m, n in zip(source, target, strict=True)
        ]
    )


lengths_of_pairs = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=120
).map(lambda pairs: tuple(np.array(side, dtype=np.int32) for side in zip(*pairs, strict=True)))
budgets = st.tuples(st.integers(10, 400), st.integers(10, 400))


# Planning


@given(lengths_of_pairs, budgets, st.integers(0, 5), st.integers(1, 4))
def test_every_pair_is_planned_once_within_the_budget(
    lengths: tuple[np.ndarray, np.ndarray], tokens: tuple[int, int], epoch: int, world: int
) -> None:
    source, target = lengths
    batch_tokens, device_tokens = tokens
    plan = plan_epoch(source, target, batch_tokens, device_tokens, 7, epoch, world)
    micro_batches = [indices for update in plan for indices in update]
    assert sorted(np.concatenate(micro_batches)) == list(range(len(source)))
    assert all(len(update) for update in plan)
    for indices in micro_batches:
        padded = len(indices) * (int(source[indices].max()) + 1)
        assert padded <= device_tokens or len(indices) == 1
        padded_target = len(indices) * (int(target[indices].max()) + 1)
        assert padded_target <= TARGET_ROOM * device_tokens or len(indices) == 1


@given(lengths_of_pairs, budgets, st.integers(0, 9))
def test_a_plan_depends_on_seed_and_epoch_alone(
    lengths: tuple[np.ndarray, np.ndarray], tokens: tuple[int, int], epoch: int
) -> None:
    first, again = (plan_epoch(*lengths, *tokens, 3, epoch) for _ in range(2))
    assert [[i.tolist() for i in update] for update in first] == [
        [i.tolist() for i in update] for update in again
    ]
    # Resuming computes the epoch from the update's number, so all epochs must be equally long.
    assert len(plan_epoch(*lengths, *tokens, 3, epoch + 1)) == len(first)
    assert len(plan_epoch(*lengths, *tokens, 4, 0)) == len(first)


@given(lengths_of_pairs, st.integers(0, 9))
def test_buckets_against_a_slow_sort(lengths: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    source, target = (side.tolist() for side in lengths)
    shuffled = np.random.default_rng(seed).permutation(len(source)).tolist()
    # Python's sort keeps the shuffled order of pairs of equal lengths.
    expected = sorted(
        shuffled, key=lambda i: (source[i], -target[i] if source[i] % 2 else target[i])
    )
    found = batches._bucketed(*lengths, np.random.default_rng(seed))
    assert found.tolist() == expected
    assert found.dtype == np.int32


def test_epochs_and_seeds_differ_in_order_and_in_company() -> None:
    pairs = random_pairs(2000)
    plans = [
        plan_epoch(pairs.source_lengths, pairs.target_lengths, 1000, 500, seed, epoch)
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert len({tuple(plan[0][0]) for plan in plans}) == 3
    companies = [{frozenset(i.tolist()) for update in plan for i in update} for plan in plans]
    assert len(companies[0] & companies[1]) < 0.2 * len(companies[0])


@pytest.mark.parametrize(("batch", "device"), [(1000, 1000), (1000, 250), (1000, 300), (600, 5000)])
def test_updates_have_about_the_tokens_asked_for(batch: int, device: int) -> None:
    pairs = random_pairs(5000)
    plan = plan_epoch(pairs.source_lengths, pairs.target_lengths, batch, device, 0, 0)
    sizes = [int((pairs.source_lengths[np.concatenate(update)] + 1).sum()) for update in plan]
    assert 0.9 * batch < np.mean(sizes) <= batch
    assert 0.5 * batch < min(sizes)
    assert max(sizes) < 1.5 * batch


def test_what_is_left_over_is_no_update_of_its_own() -> None:
    source = np.array([9] * 103)  # ten full micro-batches of 100 tokens, and 30 tokens
    plan = plan_epoch(source, source, 103, 103, 0, 0)
    sizes = sorted(sum(10 * len(indices) for indices in update) for update in plan)
    assert sizes == [100] * 9 + [130]


def test_updates_do_not_depend_on_the_number_of_devices() -> None:
    pairs = random_pairs(1000)
    plans = [
        plan_epoch(pairs.source_lengths, pairs.target_lengths, 1000, 250, 0, 0, world)
        for world in (1, 2, 3, 4)
    ]
    for plan in plans[1:]:
        for update, other in zip(plans[0], plan, strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(update, other, strict=True))


def test_micro_batches_shrink_until_every_device_has_one() -> None:
    pairs = random_pairs(1000)
    plan = plan_epoch(pairs.source_lengths, pairs.target_lengths, 1000, 1000, 0, 0, world=8)
    assert min(len(update) for update in plan) >= 8
    longest = max(int((pairs.source_lengths[i] + 1).sum()) for update in plan for i in update)
    assert longest <= 1000 / 8


def test_a_corpus_smaller_than_a_batch_is_one_update_for_all_devices() -> None:
    pairs = random_pairs(20)
    plan = plan_epoch(pairs.source_lengths, pairs.target_lengths, 16000, 16000, 0, 0, world=4)
    assert len(plan) == 1
    assert len(plan[0]) >= 4


def test_no_pairs_no_updates() -> None:
    assert plan_epoch(np.zeros(0, int), np.zeros(0, int), 100, 100, 0, 0) == []


def test_one_long_translation_does_not_pad_a_thousand_short_rows() -> None:
    source, target = np.full(1000, 3), np.full(1000, 4)
    target[500] = 900
    plan = plan_epoch(source, target, 4000, 4000, 0, 0)
    for update in plan:
        for indices in update:
            assert 500 not in indices or len(indices) < 10


# Padding


def test_padding_waste_counts_padded_positions() -> None:
    source, target = np.array([1, 3, 4]), np.array([5, 2, 6])
    plan = [[np.array([0, 1])], [np.array([2])]]
    # Source rows with EOS: 2 and 4 padded to 4, and 5 alone. Target: 6 and 3 padded to 6, and 7.
    assert padding_waste(plan, source, target) == pytest.approx((1 - 11 / 13, 1 - 16 / 19))


def test_buckets_keep_padding_small_on_both_sides() -> None:
    pairs = random_pairs(20_000)
    lengths = (pairs.source_lengths, pairs.target_lengths)
    source, target = padding_waste(plan_epoch(*lengths, 4000, 1000, 0, 0), *lengths)
    assert source < 0.01
    assert target < 0.032  # 0.038 were target lengths to rise in every source length


# Collation


def slow_collate(sentences: list[tuple[list[int], list[int]]], indices: list[int]) -> list[list]:
    """The three matrices of a batch, written out."""
    chosen = [sentences[i] for i in indices]
    wide = max(len(source) for source, _ in chosen) + 1
    high = max(len(target) for _, target in chosen) + 1
    source = [[*ids, EOS] + [PAD] * (wide - len(ids) - 1) for ids, _ in chosen]
    target_in = [[START, *ids] + [PAD] * (high - len(ids) - 1) for _, ids in chosen]
    target_out = [[*ids, EOS] + [PAD] * (high - len(ids) - 1) for _, ids in chosen]
    return [source, target_in, target_out]


sentence = st.lists(st.integers(4, 90), min_size=1, max_size=8)


@given(st.data(), st.lists(st.tuples(sentence, sentence), min_size=1, max_size=12))
def test_collation_against_a_slow_one(
    data: st.DataObject, sentences: list[tuple[list[int], list[int]]]
) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1), min_size=1, max_size=8))
    batch = collate(pairs_of(sentences), np.array(chosen), pad=PAD, start=START, eos=EOS)
    matrices = [batch.source, batch.target_input, batch.target_output]
    assert [matrix.tolist() for matrix in matrices] == slow_collate(sentences, chosen)
    assert {matrix.dtype for matrix in matrices} == {torch.long}
    assert batch.source_tokens == int((batch.source != PAD).sum())
    assert batch.target_tokens == int((batch.target_output != PAD).sum())
    assert batch.indices.tolist() == chosen


def test_collation_with_special_ids_of_another_model() -> None:
    """MarianMT starts with its padding token, the last of the vocabulary; EOS is 0."""
    pairs = pairs_of([([5, 6], [7]), ([5], [8, 9])])
    batch = collate(pairs, np.array([0, 1]), pad=500, start=500, eos=0)
    assert batch.source.tolist() == [[5, 6, 0], [5, 0, 500]]
    assert batch.target_input.tolist() == [[500, 7, 500], [500, 8, 9]]
    assert batch.target_output.tolist() == [[7, 0, 500], [8, 9, 0]]
    assert (batch.source_tokens, batch.target_tokens) == (5, 5)


def test_a_batch_moves_to_a_device() -> None:
    batch = collate(random_pairs(3), np.arange(3), pad=PAD, start=START, eos=EOS)
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    tensors = (moved.source, moved.target_input, moved.target_output)
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert moved.source_tokens == batch.source_tokens


# The stream


def stream(
    pairs: SimpleNamespace,
    start_update: int = 0,
    rank: int = 0,
    world: int = 1,
    planned_for: int = 0,
):
    return updates(
        pairs,
        batch_tokens=400,
        device_tokens=100,
        seed=1,
        pad=PAD,
        start=START,
        eos=EOS,
        start_update=start_update,
        rank=rank,
        world=world,
        planned_for=planned_for,
    )


def rows(update: Update) -> list[list[int]]:
    return [micro_batch.indices.tolist() for micro_batch in update.micro_batches]


@pytest.mark.parametrize("start", [0, 1, 6, 7, 8, 15, 100])
def test_a_late_start_gives_what_an_uninterrupted_stream_gives(start: int) -> None:
    pairs = random_pairs(200)
    whole = list(islice(stream(pairs), start, start + 20))
    late = list(islice(stream(pairs, start), 20))
    assert [u.number for u in late] == list(range(start, start + 20))
    assert [(u.epoch, u.index) for u in late] == [(u.epoch, u.index) for u in whole]
    assert [rows(u) for u in late] == [rows(u) for u in whole]


def test_each_epoch_of_the_stream_has_every_pair_once() -> None:
    pairs = random_pairs(200)
    epochs: dict[int, list[int]] = {}
    for update in islice(stream(pairs), 30):
        epochs.setdefault(update.epoch, []).extend(i for row in rows(update) for i in row)
    assert len(epochs) >= 3
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(200))
    assert epochs[0] != epochs[1]


@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_share_an_update_and_agree_on_its_size(world: int) -> None:
    pairs = random_pairs(300)
    streams = [stream(pairs, rank=rank, world=world) for rank in range(world)]
    planned = plan_epoch(pairs.source_lengths, pairs.target_lengths, 400, 100, 1, 0, world)
    for update, parts in zip(planned, zip(*streams, strict=False), strict=False):
        together = [row for part in parts for row in rows(part)]
        assert sorted(together) == sorted(i.tolist() for i in update)
        assert all(part.micro_batches for part in parts)
        batches = [micro.build() for part in parts for micro in part.micro_batches]
        sizes = {(part.source_tokens, part.target_tokens) for part in parts}
        assert sizes == {
            (sum(b.source_tokens for b in batches), sum(b.target_tokens for b in batches))
        }


@pytest.mark.parametrize("now", [1, 2, 5, 9])
@pytest.mark.parametrize("began", [1, 6])
def test_a_stream_goes_on_with_another_number_of_ranks(began: int, now: int) -> None:
    """The same micro-batches with the same numbers, which seed dropout."""
    pairs = random_pairs(200)

    def numbered(world: int, planned_for: int = 0) -> list[tuple[int, int, dict[int, list[int]]]]:
        """Updates 7 to 26 over all ranks: epoch, target tokens, micro-batches by number."""
        streams = [stream(pairs, 7, rank, world, planned_for) for rank in range(world)]
        return [
            (
                parts[0].epoch,
                parts[-1].target_tokens,
                {
                    r + i * world: row
                    for r, part in enumerate(parts)
                    for i, row in enumerate(rows(part))
                },
            )
            for parts in islice(zip(*streams, strict=True), 20)
        ]

    assert numbered(now, planned_for=began) == numbered(began)


def test_a_stream_of_nothing_is_an_error() -> None:
    empty = np.zeros(0, dtype=np.int32)
    nothing = SimpleNamespace(source_lengths=empty, target_lengths=empty)
    with pytest.raises(UserError, match="no sentence pairs"):
        next(stream(nothing))


# Evaluation


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(5, 300))
def test_evaluation_batches_cover_all_sentences_by_length(lengths: list[int], tokens: int) -> None:
    batches = evaluation_batches(lengths, tokens)
    order = [int(i) for indices in batches for i in indices]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[i] for i in order] == sorted(lengths)
    for indices in batches:
        padded = len(indices) * (max(lengths[i] for i in indices) + 1)
        assert padded <= tokens or len(indices) == 1


@given(st.lists(st.integers(1, 50), min_size=2, max_size=60), st.integers(60, 300))
def test_evaluation_batches_are_as_full_as_they_can_be(lengths: list[int], tokens: int) -> None:
    batches = evaluation_batches(lengths, tokens)
    assume(len(batches) > 1)
    for indices, following in pairwise(batches):
        longer = lengths[following[0]] + 1
        assert (len(indices) + 1) * longer > tokens
