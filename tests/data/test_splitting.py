"""Duplicates, splits and samples: against a slow reference, and in any order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.data.cleaning import (
    DEV,
    DUPLICATE,
    HELD_OUT,
    NOT_SAMPLED,
    TEST,
    TRAIN,
    UNLABELLED,
    assign_splits,
    hash64,
    held_out_size,
    mark_duplicates,
    sample_train,
)
from headcount.errors import UserError

# Few sentences and translations, so that there are duplicates and shared English sides.
PAIRS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), min_size=40, max_size=120)


def hashes(values: list[str]) -> np.ndarray:
    return np.array([hash64(value) for value in values], dtype=np.uint64)


def label(pairs: list[tuple[int, int]], given: list[int] | None = None) -> np.ndarray:
    labels = np.array(given or [UNLABELLED] * len(pairs), dtype=np.int8)
    mark_duplicates(hashes([f"{e} {f}" for e, f in pairs]), labels)
    assign_splits(hashes([str(e) for e, _ in pairs]), labels)
    return labels


def slow_labels(pairs: list[tuple[int, int]]) -> list[int]:
    """The rule in plain words: unique pairs; the sentences of least hash are test, then dev."""
    seen: set[tuple[int, int]] = set()
    kept = []
    for pair in pairs:
        kept.append(pair not in seen)
        seen.add(pair)
    groups: dict[int, int] = {}
    for pair, keep in zip(pairs, kept, strict=True):
        if keep:
            groups[pair[0]] = groups.get(pair[0], 0) + 1
    order = sorted(groups, key=lambda e: hash64(str(e)))
    size = held_out_size(sum(groups.values()))
    split = dict.fromkeys(order, TRAIN)
    queue = list(order)
    for name, reserved in ((TEST, 2), (DEV, 1)):
        held = 0
        while held < size and len(queue) > reserved:
            sentence = queue.pop(0)
            split[sentence] = name
            held += groups[sentence]
    return [split[p[0]] if keep else DUPLICATE for p, keep in zip(pairs, kept, strict=True)]


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_labels_agree_with_the_slow_rule(pairs: list[tuple[int, int]]) -> None:
    if len({e for e, _ in pairs}) < 3:
        return
    assert label(pairs).tolist() == slow_labels(pairs)


@given(PAIRS, st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_order_changes_nothing(pairs: list[tuple[int, int]], random) -> None:
    if len({e for e, _ in pairs}) < 3:
        return
    shuffled = pairs[:]
    random.shuffle(shuffled)

    def content(some: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
        return {p: s for p, s in zip(some, label(some).tolist(), strict=True) if s != DUPLICATE}

    assert content(pairs) == content(shuffled)


@given(PAIRS, st.data())
@settings(max_examples=40, deadline=None)
def test_no_sentence_in_two_splits_also_with_splits_of_ones_own(pairs, data) -> None:
    some_split = st.sampled_from([TRAIN, DEV, TEST, UNLABELLED])
    given_labels = data.draw(st.lists(some_split, min_size=len(pairs), max_size=len(pairs)))
    try:
        labels = label(pairs, given_labels)
    except UserError:
        return  # too few sentences were left
    where: dict[int, set[int]] = {}
    for (sentence, _), split in zip(pairs, labels.tolist(), strict=True):
        if split >= 0:
            where.setdefault(sentence, set()).add(split)
    assert all(len(splits) == 1 for splits in where.values())
    assert not np.any(labels == UNLABELLED)


def test_given_test_set_is_kept_whole_and_train_gives_way() -> None:
    pairs = [(1, 0), (2, 0), (3, 0), (1, 1), (2, 0), (4, 0)]
    given_labels = [TEST, DEV, TRAIN, TRAIN, TRAIN, TRAIN]
    assert label(pairs, given_labels).tolist() == [TEST, DEV, TRAIN, HELD_OUT, HELD_OUT, TRAIN]


@pytest.mark.parametrize(
    ("pairs", "size"), [(10, 1), (4000, 200), (20_000, 500), (178_000, 1780), (6_000_000, 2500)]
)
def test_size_of_dev_and_test(pairs: int, size: int) -> None:
    assert held_out_size(pairs) == size


def test_too_few_sentences_to_split() -> None:
    with pytest.raises(UserError, match="Only 2 different English sentences"):
        label([(1, 0), (1, 1), (2, 0)])


def test_sample_is_of_the_wanted_size_nested_and_independent_of_order() -> None:
    pairs = [(i, 0) for i in range(500)]

    def sample(some: list[tuple[int, int]], wanted: int, seed: int) -> set[int]:
        labels = label(some)
        held_out = int(np.count_nonzero(labels > TRAIN))
        sample_train(hashes([f"{e} {f}" for e, f in some]), labels, wanted, seed)
        assert np.count_nonzero(labels > TRAIN) == held_out  # dev and test are not touched
        assert np.count_nonzero(labels == NOT_SAMPLED) == 500 - held_out - wanted
        return {e for (e, _), s in zip(some, labels.tolist(), strict=True) if s == TRAIN}

    small = sample(pairs, 100, seed=0)
    assert len(small) == 100
    assert small == sample(pairs[::-1], 100, seed=0)
    assert small < sample(pairs, 200, seed=0)
    assert len(small & sample(pairs, 100, seed=1)) < 60  # another seed, another sample


def test_asking_for_more_than_there_is_names_the_number() -> None:
    labels = label([(i, 0) for i in range(100)])
    available = int(np.count_nonzero(labels == TRAIN))
    with pytest.raises(UserError, match=f"the {available} training pairs"):
        sample_train(hashes([f"{i} 0" for i in range(100)]), labels, 96, 0)
