"""Sentences end to end: chosen ones against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.joining import gather


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1), st.data())
def test_gathering_against_a_loop(sentences: list[list[int]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(sentences) - 1)))
    flat = np.array([token for sentence in sentences for token in sentence], dtype=np.uint16)
    offsets = np.cumsum([0, *map(len, sentences)])
    found, lengths = gather(flat, offsets, np.array(chosen, dtype=np.int32))
    assert found.tolist() == [token for i in chosen for token in sentences[i]]
    assert lengths.tolist() == [len(sentences[i]) for i in chosen]
