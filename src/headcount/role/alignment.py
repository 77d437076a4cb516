"""Which word of the parse every BPE piece belongs to, by character offsets (Sec. 5.2).

Tokeniser and parser cut a sentence differently: `don't` is `don ' t` for one and `do n't` for the
other. A piece belongs to the word that most of its characters are in (the first one, if several
are equal). A word that no piece belongs to cannot be told from the word that owns its characters:
the two are *joined* into one unit, which counts as attended to where either is. A sentence where
visible text belongs to no word, or whose words are not found in its text, cannot be mapped; the
caller counts these.

Attention between words comes from attention between pieces: weight to a word is the sum of the
weights to its pieces; weight from a word is the mean of the weights from its pieces. So every
word's row still sums to at most one; the rest is the weight of EOS, which belongs to no word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

NO_WORD = -1


def membership(words: Tensor, count: int) -> Tensor:
    """`[batch, length]` words of pieces to `[batch, length, words]`: 1 where a piece is the word's.

    EOS and padding have `NO_WORD` and so an empty row.
    """
    return F.one_hot(words + 1, count + 1)[..., 1:].to(torch.float32)


def word_attention(weights: Tensor, member: Tensor) -> Tensor:
    """`[batch, heads, length, length]` to `[batch, heads, words, words]`.

    `member` is `membership(...)`, `[batch, length, words]`.
    """
    batch, heads, length, _ = weights.shape
    count = member.shape[-1]
    member = member.to(weights.dtype)
    mean = member / member.sum(1, keepdim=True).clamp(min=1)  # over the query's pieces
    rows = weights.transpose(1, 2).reshape(batch, length, heads * length)
    from_words = mean.transpose(1, 2) @ rows  # [batch, words, heads * length]
    to_words = from_words.view(batch, count * heads, length) @ member  # sum over the key's pieces
    return to_words.view(batch, count, heads, count).transpose(1, 2)


Span = tuple[int, int]

# How the Penn Treebank and its parsers (CoreNLP among them) write what stands in the text.
TREEBANK_ESCAPES = {
    "-LRB-": ("(",),
    "-RRB-": (")",),
    "-LSB-": ("[",),
    "-RSB-": ("]",),
    "-LCB-": ("{",),
    "-RCB-": ("}",),
    "``": ('"', "“", "«", "„"),
    "''": ('"', "”", "»", "“"),
    "`": ("'", "‘"),
    "'": ("’",),
    "--": ("—", "–"),
    "...": ("…",),
}


@dataclass(frozen=True)
class Alignment:
    """A sentence's words as its pieces can tell them apart.

    `units[piece]` is the unit a piece belongs to; `unit_of_word[word]` is the unit of a word, or -1
    where the tokeniser has dropped all of its characters.
    """

    units: list[int]
    unit_of_word: list[int]
    count: int

    @property
    def joined(self) -> int:
        """How many words share the unit of an earlier word."""
        return sum(unit >= 0 for unit in self.unit_of_word) - self.count


def align(pieces: Sequence[Span], words: Sequence[Span]) -> Alignment | None:
    """Units of pieces and words; None where a visible piece stands outside every word.

    Both are given as characters `[start, end)` in order of their starts. A piece without
    characters (a lone mark of a word start) belongs to the word that follows it.
    """
    owners: list[int] = []
    first = 0  # every word before this one ends where the present piece begins, or earlier
    for start, end in pieces:
        while first < len(words) and words[first][1] <= start:
            first += 1
        owner = _owner(start, end, words, first)
        if owner < 0:
            return None
        owners.append(owner)
    if len(set(owners)) == len(words):  # the usual case: every word has a piece of its own
        return Alignment(owners, list(range(len(words))), len(words))
    return _join(owners, pieces, words)


def _owner(start: int, end: int, words: Sequence[Span], first: int) -> int:
    """The word with most of a piece's characters, or -1."""
    if start == end:
        return min(first, len(words) - 1)
    best, most = -1, 0
    for word in range(first, len(words)):
        word_start, word_end = words[word]
        if word_start >= end:
            break
        overlap = min(end, word_end) - max(start, word_start)
        if overlap > most:
            best, most = word, overlap
    return best


def _join(owners: list[int], pieces: Sequence[Span], words: Sequence[Span]) -> Alignment:
    """Units where some words own no piece: each goes to the owner of most of its characters."""
    owning = set(owners)
    target: list[int] = []
    for word, (start, end) in enumerate(words):
        best, most = -1, 0
        if word in owning:
            best = word
        else:
            for owner, (piece_start, piece_end) in zip(owners, pieces, strict=True):
                overlap = min(end, piece_end) - max(start, piece_start)
                if overlap > most:
                    best, most = owner, overlap
        target.append(best)
    numbers = {owner: number for number, owner in enumerate(sorted(owning))}
    units = [numbers[owner] for owner in owners]
    return Alignment(units, [numbers.get(owner, -1) for owner in target], len(numbers))


def locate(forms: Sequence[str], text: str) -> list[Span] | None:
    """Where words stand in a text, by their forms; None where the two do not agree.

    Whitespace, Unicode normal forms and the Penn Treebank's escapes make no difference. All
    visible characters of the text must belong to a word.
    """
    letters, spans = _visible(text)
    located: list[Span] = []
    at = 0
    for form in forms:
        spelt = next((s for s in _spellings(form) if letters.startswith(s, at)), "")
        if not spelt:
            return None
        located.append((spans[at][0], spans[at + len(spelt) - 1][1]))
        at += len(spelt)
    return located if at == len(letters) else None


def _spellings(form: str) -> Iterator[str]:
    """A form as it may stand in the text: itself first."""
    yield _visible(form)[0]
    yield from TREEBANK_ESCAPES.get(form, ())
    if "\\" in form:
        yield form.replace("\\/", "/").replace("\\*", "*")


def _visible(text: str) -> tuple[str, list[Span]]:
    """The text in NFC without whitespace, and the characters that each letter of it stands for."""
    if text.isascii():
        kept = [i for i, letter in enumerate(text) if not letter.isspace()]
        return "".join(text[i] for i in kept), [(i, i + 1) for i in kept]
    letters: list[str] = []
    spans: list[Span] = []
    start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and unicodedata.combining(text[end]):
            end += 1  # a letter and its combining marks are one
        if not text[start].isspace():
            composed = unicodedata.normalize("NFC", text[start:end])
            letters += composed
            spans += [(start, end)] * len(composed)
        start = end
    return "".join(letters), spans
