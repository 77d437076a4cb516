"""Sentence pairs, where they come from, and what an entry of the registry of corpora holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from headcount.errors import UserError
from headcount.progress import Progress, silent

SPLITS = ("train", "dev", "test")
_LONGEST_NAME = 32  # of a language code, which becomes part of file names

LEAST_OVERLAP = 0.9
"""Of two subtitles, in time (App. B.1)."""


class Pair(NamedTuple):
    """One sentence and its translation.

    `split` is set where the source brings its own division, and `part` where a held-out set is to
    be kept as a file pair of its own as well (`test_2016`). `tree` is the source sentence's gold
    parse in CoNLL-U where there is one. `fault` is why a record cannot be used: it is counted, not
    skipped silently.
    """

    source: str
    target: str
    split: str = ""
    tree: str = ""
    fault: str = ""
    part: str = ""


def faulty(reason: str) -> Pair:
    """A record without a usable pair."""
    return Pair("", "", fault=reason)


@dataclass(frozen=True)
class Source:
    """Where pairs come from, their licence and attribution, and how to read them.

    `inputs` identifies the content (file name to sha256, or something else that identifies it), so
    that a folder made from the same input is recognised.
    """

    name: str
    description: str
    licence: str
    attribution: str
    languages: tuple[str, str]
    inputs: Mapping[str, str]
    read: Callable[[Progress], Iterator[Pair]]
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What a user asked for, as far as it concerns where the pairs come from.

    `origin` is the user's own file or folder, `splits` says which of its files are what, `overlap`
    is the least overlap in time of two subtitles, `datasets` are names for mtdata.
    """

    languages: tuple[str, str] | None
    origin: Path | None = None
    pairs: int | None = None
    seed: int = 0
    overlap: float = LEAST_OVERLAP
    datasets: tuple[str, ...] = ()
    splits: str = ""
    progress: Progress = silent


@dataclass(frozen=True)
class KnownCorpus:
    """One name that `headcount data` takes: an entry of the registry in `corpora.py`."""

    name: str
    help: str
    licence: str
    open: Callable[[Request], Source]
    """Finds out what to read and from where, without reading the pairs yet."""
    language_pairs: tuple[str, ...] = ()
    """The language pairs to choose from; none where the user's own text decides."""
    needs: str = ""
    """What it requires: apt, an extra, options."""

    def choose_languages(self, pair: str | None) -> tuple[str, str] | None:
        """The languages of `--pair`, or of the only pair that there is."""
        if pair is None:
            if len(self.language_pairs) > 1:
                raise UserError(
                    f"{self.name} has several language pairs.",
                    f"Add --pair {' or '.join(self.language_pairs)}.",
                )
            return parse_language_pair(self.language_pairs[0]) if self.language_pairs else None
        if self.language_pairs and pair not in self.language_pairs:
            raise UserError(
                f"{self.name} does not have the language pair {pair}.",
                f"It has {', '.join(self.language_pairs)}.",
            )
        return parse_language_pair(pair)


def parse_language_pair(text: str) -> tuple[str, str]:
    """`en-fr` as source and target language."""
    parts = text.strip().split("-")
    sound = all(part.replace("_", "").isalnum() and len(part) <= _LONGEST_NAME for part in parts)
    if len(parts) != 2 or not sound or parts[0] == parts[1]:
        raise UserError(
            f"'{text[:100]}' is not a language pair.", "Write it as source-target, such as en-fr."
        )
    return parts[0], parts[1]
