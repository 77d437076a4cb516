"""Sentences of different lengths, end to end in one array."""

from __future__ import annotations

import numpy as np


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
