"""Words: how text is cut before BPE, and how often every word of a corpus occurs.

Text is cut at whitespace, brought to Unicode NFC, and every word gets SentencePiece's mark of a
word start (`▁`). Punctuation and symbols are cut off as parts of their own.

`WordIds` gives the token ids of text by looking words up: words repeat so much that this is ten
times as fast as encoding.
"""

from __future__ import annotations

import random
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from threading import Lock

import numpy as np
from tokenizers import Regex, normalizers, pre_tokenizers

from headcount.data.joining import gather
from headcount.errors import UserError

MARK = "▁"

# The mark itself reads as a space, or decoding could not tell it from a word start. The four
# separators are whitespace to Python and not to Unicode; mapping them makes both agree.
_SPACES = "[▁\x1c-\x1f]"
# A word, or one punctuation character or symbol; dots and dashes may repeat: "...", "--".
_WORD_OR_PUNCTUATION = r"▁?[^\p{P}\p{S}]+|▁?(?:\.+|-+|[\p{P}\p{S}])"

# Below U+0300, where combining marks begin, all text is in NFC and Python can cut it like the
# library, several times faster.
_SIMPLE = range(0x300)
_CUT_OFF = "".join(
    re.escape(chr(code)) for code in _SIMPLE if unicodedata.category(chr(code))[0] in "PS"
)
_find_simple_parts = re.compile(rf"[^{_CUT_OFF}]+|\.+|-+|[{_CUT_OFF}]").findall
_is_simple = re.compile(rf"[\0-{chr(_SIMPLE[-1])}]+").fullmatch

_BLOCK_LINES = 10_000

LONGEST_PART = 1000
"""Characters of a part of a word. BPE takes time quadratic in a part's length, so anything longer
(no word of any language is) is cut into parts of this length."""


def normalizer() -> normalizers.Normalizer:
    """NFC, and every kind of space a space."""
    return normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(_SPACES), " ")])


def splitter() -> pre_tokenizers.PreTokenizer:
    """Cuts at whitespace, puts the mark before each word, and cuts punctuation off."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=MARK, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(_WORD_OR_PUNCTUATION), "isolated"),
        ]
    )


_normalise, _split = normalizer().normalize_str, splitter().pre_tokenize_str


def word_parts(word: str) -> list[str]:
    """What `normalizer` and `splitter` make of one word that `str.split` has cut out of a text."""
    if _is_simple(word):
        parts: list[str] = _find_simple_parts(word)
        parts[0] = MARK + parts[0]
    else:
        parts = [part for part, _ in _split(_normalise(word))]
    if len(word) < LONGEST_PART:
        return parts
    return [
        part[begin : begin + LONGEST_PART]
        for part in parts
        for begin in range(0, len(part), LONGEST_PART)
    ]


def count_parts(lines: Iterable[str], sample: int) -> Counter[str]:
    """How often each part of a word occurs in the lines, or in a random `sample` of more lines.

    Lines are not kept: where there are more than `sample`, they are read a second time.
    """
    remaining = iter(lines)
    words = _count_words(islice(remaining, sample))
    more = sum(1 for _ in remaining)
    if more:
        words.clear()  # one table at a time
        words = _count_words(sampled(lines, sample + more, sample))
    parts: Counter[str] = Counter()
    while words:  # emptied as it is read, so that no word is held twice
        word, count = words.popitem()
        for part in word_parts(word):
            parts[part] += count
    return parts


def sampled(lines: Iterable[str], total: int, size: int) -> Iterator[str]:
    """`size` of the `total` lines (all where there are fewer), in order: a uniform random sample.

    The same on every call. Selection sampling (Knuth, vol. 2, 3.4.2, algorithm S): nothing is kept
    in memory.
    """
    rng = random.Random(size)
    wanted = min(size, total)
    for left, line in zip(range(total, 0, -1), lines, strict=False):
        if not wanted:
            break
        if rng.random() * left < wanted:
            wanted -= 1
            yield line
    if wanted:
        raise UserError("A text became shorter while it was read.", "Start again.")


def _count_words(lines: Iterable[str]) -> Counter[str]:
    """How often each word between whitespace occurs."""
    words: Counter[str] = Counter()
    remaining = iter(lines)
    while block := list(islice(remaining, _BLOCK_LINES)):
        words.update("\n".join(block).split())
    return words


# Stands as a word after every text; a lone surrogate, which no valid text contains.
_END = "\ud800"


class WordIds:
    """The token ids of every word met so far.

    `encode_part` gives the ids of a part of a word (`word_parts`).
    """

    LIMIT = 1 << 16  # words; bounded memory on a corpus of any size

    def __init__(self, encode_part: Callable[[str], Iterable[int]]) -> None:
        self._encode_part = encode_part
        self._words = _Numbered(encode_part)
        self._lock = Lock()  # several threads may share a tokenizer

    def __len__(self) -> int:
        return len(self._words)

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts end to end, [tokens] int32, and the length of each, [texts] int32."""
        with self._lock:
            try:
                return self._look_up(texts)
            except BaseException:
                self._words = _Numbered(self._encode_part)  # a word may be half written
                raise

    def _look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if len(self._words) > self.LIMIT:
            self._words = _Numbered(self._encode_part)
        table = self._words
        words = f" {_END} ".join([*texts, ""]).split()
        numbers = np.fromiter(map(table.__getitem__, words), dtype=np.int64, count=len(words))
        ids, offsets = np.frombuffer(table.ids, np.int32), np.frombuffer(table.offsets, np.int64)
        flat, sizes = gather(ids, offsets, numbers)  # [tokens], [words]
        ends = np.cumsum(sizes)[numbers == table[_END]]  # [texts]
        if len(ends) != len(texts):
            raise UserError("A text has a lone surrogate, U+D800.", "Remove it.")
        return flat, np.diff(ends, prepend=0).astype(np.int32)


class _Numbered(dict[str, int]):
    """Word -> its number; the ids of word n are ids[offsets[n]:offsets[n + 1]]."""

    def __init__(self, encode_part: Callable[[str], Iterable[int]]) -> None:
        super().__init__({_END: 0})
        self.ids = array("i", [0])  # one that no word has: an empty array has no buffer
        self.offsets = array("q", [1, 1])
        self._encode_part = encode_part
        self._parts: dict[str, tuple[int, ...]] = {}

    def __missing__(self, word: str) -> int:
        for part in word_parts(word):
            ids = self._parts.get(part)
            if ids is None:
                ids = self._parts[part] = tuple(self._encode_part(part))
            self.ids.extend(ids)
        self.offsets.append(len(self.ids))
        number = self[word] = len(self)
        return number
