"""Pieces find their words, also where tokeniser and parser cut differently."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.role.alignment import Span, align, locate


def spans(text: str, parts: str) -> list[Span]:
    """Where space-separated parts stand in a text."""
    found, at = [], 0
    for part in parts.split():
        start = text.index(part, at)
        at = start + len(part)
        found.append((start, at))
    return found


@pytest.mark.parametrize(
    ("text", "pieces", "words", "units", "unit_of_word"),
    [
        # the tokeniser cuts inside the parser's words, and across their borders
        ("I don't", "I don ' t", "I do n't", [0, 1, 2, 2], [0, 1, 2]),
        # one piece for two words: they are one unit
        ("I don't go", "I don't go", "I do n't go", [0, 1, 2], [0, 1, 1, 2]),
        ("cannot", "can not", "cannot", [0, 0], [0]),
        ("a well-known man", "a well - known man", "a well-known man", [0, 1, 1, 1, 2], [0, 1, 2]),
        ("a well-known man", "a well-known man", "a well - known man", [0, 1, 2], [0, 1, 1, 1, 2]),
        ('"Hi"', '"Hi "', '" Hi "', [0, 1], [0, 0, 1]),
        ("3,500.5km", "3 , 5 00 . 5 km", "3,500.5 km", [0, 0, 0, 0, 0, 0, 1], [0, 1]),
        ("ok 👩‍👩‍👧!", "ok 👩 ‍ 👩 ‍👧 !", "ok 👩‍👩‍👧 !", [0, 1, 1, 1, 1, 2], [0, 1, 2]),
        # ties go to the first word
        ("ab", "ab", "a b", [0], [0, 0]),
    ],
)
def test_where_tokeniser_and_parser_disagree(
    text: str, pieces: str, words: str, units: list[int], unit_of_word: list[int]
) -> None:
    alignment = align(spans(text, pieces), spans(text, words))
    assert alignment is not None
    assert alignment.units == units
    assert alignment.unit_of_word == unit_of_word
    assert alignment.count == len(set(units))
    assert alignment.joined == len(unit_of_word) - len(set(unit_of_word))


def test_a_lone_mark_of_a_word_start_belongs_to_the_word_after_it() -> None:
    # "▁" before "bcd", which is two pieces more
    alignment = align([(0, 1), (2, 2), (2, 4), (4, 5)], [(0, 1), (2, 5)])
    assert alignment is not None
    assert alignment.units == [0, 1, 1, 1]


def test_words_that_share_all_their_characters_are_one_unit() -> None:
    alignment = align([(0, 2), (3, 5)], [(0, 2), (0, 2), (3, 5)])  # "du" = de + le
    assert alignment is not None
    assert alignment.unit_of_word == [0, 0, 1]


def test_a_word_whose_characters_the_tokeniser_dropped_has_no_unit() -> None:
    alignment = align([(0, 1), (4, 5)], [(0, 1), (2, 3), (4, 5)])
    assert alignment is not None
    assert alignment.unit_of_word == [0, -1, 1]


def test_text_outside_every_word_cannot_be_mapped() -> None:
    assert align([(0, 1), (2, 3)], [(0, 1)]) is None


@st.composite
def two_cuts(draw: st.DrawFn) -> tuple[list[Span], list[Span]]:
    """One text of some length, cut in two ways, with gaps (spaces) where both agree."""
    length = draw(st.integers(1, 30))
    gaps = draw(st.sets(st.integers(1, max(length - 2, 1)), max_size=4))
    gaps = {gap for gap in gaps if 0 < gap < length - 1}

    def cut() -> list[Span]:
        borders = draw(st.sets(st.integers(1, length), max_size=length))
        edges = sorted({0, length, *borders, *gaps, *(gap + 1 for gap in gaps)})
        return [(a, b) for a, b in pairwise(edges) if a not in gaps]

    return cut(), cut()


@given(two_cuts())
def test_every_piece_goes_where_most_of_its_characters_are(cuts: tuple[list[Span], ...]) -> None:
    pieces, words = cuts
    alignment = align(pieces, words)
    assert alignment is not None

    def common(piece: Span, word: Span) -> int:
        return len(set(range(*piece)) & set(range(*word)))

    owners = [max(range(len(words)), key=lambda w: (common(p, words[w]), -w)) for p in pieces]
    for piece, owner in enumerate(owners):
        assert alignment.units[piece] == alignment.unit_of_word[owner]
    assert sorted(set(alignment.units)) == list(range(alignment.count))
    assert set(alignment.unit_of_word) == set(range(alignment.count))
    # Words are joined only where they have to be: two that own pieces never are.
    kept = sorted(set(owners))
    assert len({alignment.unit_of_word[owner] for owner in kept}) == len(kept)


def test_words_are_found_in_the_text() -> None:
    assert locate(["do", "n't"], "do  n't") == [(0, 2), (4, 7)]
    assert locate(["3 1/2", "km"], "3 1/2 km") == [(0, 5), (6, 8)]
    assert locate(["-LRB-", "a", "-RRB-"], "(a)") == [(0, 1), (1, 2), (2, 3)]
    assert locate(["``", "a", "''", "..."], '"a" …') == [(0, 1), (1, 2), (2, 3), (4, 5)]
    assert locate(["1\\/2"], "1/2") == [(0, 3)]


def test_words_are_found_whatever_the_normal_form() -> None:
    decomposed = "cafe\u0301 ok"
    assert locate(["café", "ok"], decomposed) == [(0, 5), (6, 8)]
    assert locate(["cafe\u0301", "ok"], "café ok") == [(0, 4), (5, 7)]


def test_other_words_are_not_found() -> None:
    assert locate(["a", "c"], "a b") is None
    assert locate(["a"], "a b") is None
    assert locate(["a", "b", "c"], "a b") is None
