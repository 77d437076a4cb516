"""Normalising text and judging pairs."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.cleaning import Limits, hash64, normalise, reason_to_drop, split_key
from headcount.data.pairs import Pair, faulty

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(TEXT)
def test_normalised_text_is_clean_and_stays_as_it_is(text: str) -> None:
    clean = normalise(text)
    assert normalise(clean) == clean
    assert unicodedata.is_normalized("NFC", clean)
    assert not any(unicodedata.category(c) == "Cc" for c in clean)
    assert clean == " ".join(clean.split())


@given(TEXT)
def test_ascii_short_cut_agrees_with_the_long_way(text: str) -> None:
    # A character outside ASCII at the end forces the long way.
    long_way = normalise(text + " é").removesuffix("é").rstrip()
    assert normalise(text).rstrip() == long_way


def test_normalise_keeps_what_carries_meaning() -> None:
    assert normalise("Va\u202f!\u00a0\n") == "Va !"
    assert normalise("e\u0301te\u0301") == "été"
    assert normalise("a\x00b\ufeff\u200bc\x7f") == "abc"
    assert normalise("one\ttwo\r\nthree") == "one two three"
    assert normalise("می\u200cخواهم") == "می\u200cخواهم"  # a joiner that Persian spells with


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("Go.", "Va !", None),
        ("", "Va !", "empty"),
        ("Go.", "", "empty"),
        ("It is late.", "Il est trÃ¨s tard, dÃ©jÃ .", "misencoded"),
        ("It is late.", "Il est t\ufffdrd.", "misencoded"),
        ("12.5 - 3", "12,5 - 3", "no letters"),
        ("Taxi!", "Taxi!", "identical"),
        ("Ctrl+Home", "CTRL + HOME", "identical"),
        ("a" * 1001, "b" * 900, "too long"),
        ("Yes.", "Oui, " + "très " * 20, "unequal"),
        ("word " * 10, "mot", "unequal"),
        ("I see.", "Je comprends très bien tout cela.", None),
        ("Ñandú Ñandú", "Ða Ðe", None),
    ],
)
def test_each_filter(source: str, target: str, reason: str | None) -> None:
    assert reason_to_drop(Pair(source, target), Limits()) == reason


def test_a_readers_fault_is_the_reason() -> None:
    assert reason_to_drop(faulty("low overlap"), Limits()) == "low overlap"


def test_limits_are_what_they_say() -> None:
    limits = Limits(longest=100, ratio=2.0, slack=10)
    assert reason_to_drop(Pair("a" * 10, "b" * 30), limits) is None  # 40 <= 2 * 20
    assert reason_to_drop(Pair("a" * 10, "b" * 31), limits) == "unequal"
    assert reason_to_drop(Pair("b" * 31, "a" * 10), limits) == "unequal"
    assert reason_to_drop(Pair("a" * 100, "b" * 100), limits) is None
    assert reason_to_drop(Pair("a" * 101, "b" * 100), limits) == "too long"


def test_split_key_ignores_case_and_punctuation() -> None:
    assert split_key("Don't go!") == split_key("don’t  GO.")
    assert split_key("Go away.") != split_key("Go.")
    assert split_key("...") == "..."  # never an empty key


def test_hash_is_the_same_on_every_machine() -> None:
    assert hash64("headcount") == 0x96A0F964E9B78EDD
