"""What a pair must be like to be kept, which split it goes to, and samples spread evenly.

Filters judge every pair alone. Duplicates, splits and samples need the whole corpus, but only
8-byte hashes of it, so that memory stays small. Everything follows from the pairs' content: the
order in which they come changes nothing but the order in which they are written.

`spread` takes a few of many, evenly spread: corpora are often sorted by length, so that the first
lines are no sample.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from headcount.data.pairs import SPLITS, Pair
from headcount.errors import UserError

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


Hashes = npt.NDArray[np.uint64]
Labels = npt.NDArray[np.int8]

TRAIN, DEV, TEST = range(len(SPLITS))
DUPLICATE, HELD_OUT, NOT_SAMPLED, UNLABELLED = -1, -2, -3, -4
DROPPED_AS = {DUPLICATE: "duplicate", HELD_OUT: "held out", NOT_SAMPLED: "not sampled"}

LARGEST_HELD_OUT = 2500


def held_out_size(pairs: int) -> int:
    """How many pairs dev and test get each: 1 % up to 2500, a larger share of small corpora."""
    return min(LARGEST_HELD_OUT, max(pairs // 100, min(500, pairs // 20), 1))


def mark_duplicates(pair_hashes: Hashes, labels: Labels) -> None:
    """Label all but the first of equal pairs as duplicates.

    Dev and test sets that come with a source are left as they are: scores on them must stay
    comparable.
    """
    divisible = np.flatnonzero((labels != DEV) & (labels != TEST))
    order = divisible[np.argsort(pair_hashes[divisible], kind="stable")]  # in reading order
    ordered = pair_hashes[order]
    labels[order[1:][ordered[1:] == ordered[:-1]]] = DUPLICATE


def assign_splits(key_hashes: Hashes, labels: Labels) -> None:
    """Divide the unlabelled pairs; all pairs of one English sentence go the same way.

    The sentences with the smallest hashes are the test set, the next ones the dev set. A source
    with its own dev or test set keeps it, and its training pairs whose English sentence is also
    held out are left out.
    """
    for split in (TEST, DEV):
        held_out = key_hashes[labels == split]
        lower = (labels == TRAIN) | (labels == UNLABELLED) | ((labels == DEV) & (split == TEST))
        if held_out.size:
            labels[lower & np.isin(key_hashes, held_out)] = HELD_OUT
    open_pairs = np.flatnonzero((labels == UNLABELLED) | (labels == TRAIN))
    keys, group, sizes = np.unique(key_hashes[open_pairs], return_inverse=True, return_counts=True)
    wanted = [split for split in (TEST, DEV) if not np.any(labels == split)]
    if len(keys) < len(wanted) + 1:
        raise UserError(
            f"Only {len(keys)} different English sentences are left after the filters.",
            "Train, dev and test need at least one each: give more pairs.",
        )
    split_of_group = np.full(len(keys), TRAIN, dtype=np.int8)
    target, start, reached = held_out_size(len(open_pairs)), 0, np.cumsum(sizes)
    for split in wanted:
        before = int(reached[start - 1]) if start else 0
        end = int(np.searchsorted(reached, before + target)) + 1
        # One sentence with very many translations must not swallow the sentences that follow.
        end = min(end, len(keys) - (len(wanted) - wanted.index(split)))
        split_of_group[start:end] = split
        start = end
    labels[open_pairs] = split_of_group[group]


def sample_train(pair_hashes: Hashes, labels: Labels, wanted: int, seed: int) -> None:
    """Keep `wanted` training pairs, chosen by a seeded hash of their content (Sec. 3)."""
    train = np.flatnonzero(labels == TRAIN)
    if wanted > len(train):
        raise UserError(
            f"--pairs {wanted} asks for more than the {len(train)} training pairs there are.",
            f"Ask for at most {len(train)}.",
        )
    order = np.argsort(_mix(pair_hashes[train], seed), kind="stable")
    labels[train[order[wanted:]]] = NOT_SAMPLED


def _mix(hashes: Hashes, seed: int) -> Hashes:
    """The hashes under a seed, by splitmix64's finaliser: another seed, another order."""
    with np.errstate(over="ignore"):
        mixed = hashes + np.uint64((seed * 0x9E3779B97F4A7C15 + 1) % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


T = TypeVar("T")


def spread_indices(total: int, limit: int) -> list[int]:
    """`limit` of the numbers below `total`, evenly spread; all where there are no more."""
    if limit >= total:
        return list(range(total))
    return [number * total // limit for number in range(limit)]


def spread(items: Sequence[T], limit: int) -> list[T]:
    """`limit` of the items, evenly spread; all where there are no more."""
    return [items[place] for place in spread_indices(len(items), limit)]


def spread_stream(items: Iterable[T], limit: int, total: int) -> Iterator[T]:
    """The same `limit` of `total` items of a stream, without holding them."""
    chosen = iter(spread_indices(total, limit))
    following = next(chosen, None)
    for number, item in enumerate(items):
        if number == following:
            following = next(chosen, None)
            yield item
