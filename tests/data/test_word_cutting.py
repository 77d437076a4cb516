"""Words: cut as the library cuts them, and counted without keeping lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headcount.data import words as module
from headcount.data.words import (
    MARK,
    count_parts,
    normalizer,
    sampled,
    splitter,
    word_parts,
)
from headcount.errors import UserError

# All that is cut by Python alone, and some of what is left to the library.
SIMPLE = [chr(code) for code in range(0x300) if not chr(code).isspace()]
OTHERS = ["\u0301", "\u2019", "œ", "한", "\u1112", "\u1161", "日", "。", MARK, "☃", "Ω"]


def library_parts(word: str) -> list[str]:
    """What the library makes of a word."""
    return [part for part, _ in splitter().pre_tokenize_str(normalizer().normalize_str(word))]


def test_every_simple_character_is_cut_as_the_library_cuts_it() -> None:
    for character in SIMPLE:
        for word in (character, f"a{character}b", f".{character}", character * 3):
            assert word_parts(word) == library_parts(word)


@given(st.lists(st.sampled_from([*SIMPLE, *OTHERS, "...", "--", "a", "b"]), min_size=1))
@example(["--", "...", "'"])
@example(["e", "\u0301", "."])
@example([MARK])
def test_words_are_cut_as_the_library_cuts_them(characters: list[str]) -> None:
    word = "".join(characters)
    assert word_parts(word) == library_parts(word)


@given(st.lists(st.text("ab. ", max_size=6), max_size=60), st.integers(1, 40))
def test_parts_of_a_sample_are_counted(lines: list[str], size: int) -> None:
    text = sampled(lines, len(lines), size)
    expected = Counter(part for line in text for word in line.split() for part in word_parts(word))
    assert count_parts(lines, size) == expected


def test_a_sample_is_uniform_in_order_and_repeatable() -> None:
    lines = [f"{number:02}" for number in range(40)]
    drawn = [list(sampled(lines, 40, 20)) for _ in range(2)]
    assert drawn[0] == drawn[1] == sorted(set(drawn[0]))
    assert list(sampled(lines[:2], 2, 20)) == lines[:2]
    often = Counter(line for size in range(40) for line in sampled(lines, 40, size))
    assert sum(often.values()) == sum(range(40))  # every sample has its size
    shares = [size / 40 for size in range(40)]
    expected = sum(shares)  # of each line
    variance = sum(share * (1 - share) for share in shares) * 40 / 39  # drawn without replacement
    statistic = sum((often[line] - expected) ** 2 / variance for line in lines)
    assert statistic < 73  # chi-squared with 39 degrees of freedom exceeds it once in a thousand


def test_a_text_that_shrinks_between_two_readings_is_noticed() -> None:
    with pytest.raises(UserError, match="shorter"):
        list(sampled(["a"] * 3, total=10, size=8))


def test_lines_are_read_again_only_where_there_are_more_than_the_sample(monkeypatch) -> None:
    monkeypatch.setattr(module, "_BLOCK_LINES", 4)
    loops = 0

    class Lines:
        def __iter__(self) -> Iterator[str]:
            nonlocal loops
            loops += 1
            return iter(["a b"] * 10)

    assert count_parts(Lines(), 10) == {"▁a": 10, "▁b": 10}
    assert loops == 1
    assert count_parts(Lines(), 9) == {"▁a": 9, "▁b": 9}
    assert loops == 1 + 2
