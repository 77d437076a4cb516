"""What a pair must be like to be kept, and how its text is normalised.

Every pair is judged alone here; what needs the whole corpus (duplicates, splits, samples) is in
`splitting.py`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from hashlib import blake2b

from headcount.data.pairs import Pair

FILTERS = (
    "malformed",
    "unaligned",
    "low overlap",
    "empty",
    "misencoded",
    "no letters",
    "identical",
    "too long",
    "unequal",
    "duplicate",
    "held out",
    "not sampled",
)
"""The reasons for dropping a pair, in the order in which they are tried.

"held out" are training pairs whose English side is in a dev or test set that the user brought.
"""

_SPACES = re.compile(r"\s+")
_NOT_WORD = re.compile(r"[\W_]+")
# Invisible marks that are not control characters by category but carry no text: soft hyphen,
# zero-width space, word joiner, byte order mark, and the marks of text direction. The zero-width
# joiners stay: Persian and the scripts of India are spelt with them.
_INVISIBLE = (
    "\u00ad\u200b\u2060\ufeff\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
_CONTROLS = {code for code in range(0xA0) if unicodedata.category(chr(code)) == "Cc"}
_TABLE: dict[int, str | None] = dict.fromkeys(_CONTROLS | {ord(mark) for mark in _INVISIBLE})
_TABLE |= {ord(space): " " for space in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85"}
# What reading UTF-8 as Latin-1 or Windows-1252 leaves behind: a lead byte, then continuation
# bytes. Twice in a sentence is no accident.
_MOJIBAKE = re.compile(r"[ÃÂÐÑ][\u0080-\u00bf\u201a-\u2122\u0152-\u0192]")


@dataclass(frozen=True)
class Limits:
    """How unequal or long a pair may be.

    Lengths are in characters. `(longer + slack) > ratio * (shorter + slack)` is absurdly unequal:
    the slack lets short sentences differ ("Go." and "Allez-y maintenant !"), the ratio judges
    long ones.
    """

    longest: int = 1000
    ratio: float = 3.0
    slack: int = 15


def normalise(text: str) -> str:
    """NFC, without control and invisible characters, and with single plain spaces.

    No-break spaces become plain ones: French sources use them before `!` and `?` inconsistently,
    and a model should not have to learn which.
    """
    if text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()  # most English lines: nothing to do
    return _SPACES.sub(" ", unicodedata.normalize("NFC", text.translate(_TABLE))).strip()


def reason_to_drop(pair: Pair, limits: Limits) -> str | None:
    """The first filter that a normalised pair does not pass, or None where it is kept."""
    source, target = pair.source, pair.target
    if pair.fault:
        return pair.fault
    if not source or not target:
        return "empty"
    if pair.split in ("dev", "test"):
        return None  # a dev or test set that comes with the source stays whole
    if _is_misencoded(source) or _is_misencoded(target):
        return "misencoded"
    if not (_has_letter(source) and _has_letter(target)):
        return "no letters"
    if source == target or split_key(source) == split_key(target):
        return "identical"
    shorter, longer = sorted((len(source), len(target)))
    if longer > limits.longest:
        return "too long"
    if longer + limits.slack > limits.ratio * (shorter + limits.slack):
        return "unequal"
    return None


def _is_misencoded(text: str) -> bool:
    return not text.isascii() and ("\ufffd" in text or len(_MOJIBAKE.findall(text)) > 1)


def _has_letter(text: str) -> bool:
    return any(map(str.isalpha, text))


def split_key(text: str) -> str:
    """What counts as the same sentence for the splits: case and punctuation do not."""
    folded = (text if text.isascii() else unicodedata.normalize("NFKC", text)).casefold()
    return _NOT_WORD.sub(" ", folded).strip() or text


def hash64(text: str) -> int:
    """A 64-bit hash that is the same on every machine and in every run."""
    return int.from_bytes(blake2b(text.encode("utf-8"), digest_size=8).digest(), "little")
