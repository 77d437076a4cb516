"""Ids by word: what happens when a look-up ends early, or is given what no text contains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from headcount.data.words import WordIds
from headcount.errors import UserError


def test_an_interrupt_leaves_no_word_half_written() -> None:
    calls = iter(range(1000))

    def encode(part: str) -> Iterable[int]:
        if next(calls) == 3:
            return interrupted()
        return [ord(letter) for letter in part]

    def interrupted() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    table = WordIds(encode)
    with pytest.raises(KeyboardInterrupt):
        table.look_up(["a b c.d e"])
    ids, lengths = table.look_up(["a c.d", "", "e"])
    # Every word is preceded by the mark of a word start.
    assert bytes(i for i in ids if i < 128).decode() == "ac.de"
    assert len(lengths) == 3
    assert lengths[1] == 0
    assert sum(lengths) == len(ids)


def test_a_lone_surrogate_is_refused() -> None:
    table = WordIds(lambda part: [1])
    with pytest.raises(UserError, match="surrogate"):
        table.look_up(["a", "b \ud800 c"])
    _, lengths = table.look_up(["a", "b c"])
    assert lengths.tolist() == [1, 2]
