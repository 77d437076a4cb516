"""A sentence pair, and a source of them: what every reader of a corpus gives to the cleaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headcount.errors import UserError
from headcount.progress import Progress

SPLITS = ("train", "dev", "test")


class Pair(NamedTuple):
    """One sentence and its translation.

    `split` is set where the source brings its own division; `tree` is the source sentence's gold
    parse in CoNLL-U where there is one. `fault` is why the reader has no use for a record: it is
    counted, not skipped in silence.
    """

    source: str
    target: str
    split: str = ""
    tree: str = ""
    fault: str = ""


def faulty(reason: str) -> Pair:
    """A record without a usable pair."""
    return Pair("", "", fault=reason)


@dataclass(frozen=True)
class Source:
    """Where pairs come from, what is owed to whom, and how to read them.

    `inputs` identifies the content (file name to sha256, or what else pins it), so that a folder
    made from the very same input can be recognised.
    """

    name: str
    description: str
    licence: str
    attribution: str
    languages: tuple[str, str]
    inputs: Mapping[str, str]
    read: Callable[[Progress], Iterator[Pair]]
    options: Mapping[str, object] = field(default_factory=dict)


def parse_language_pair(text: str) -> tuple[str, str]:
    """`en-fr` as source and target language."""
    parts = text.strip().split("-")
    sound = all(part.replace("_", "").isalnum() for part in parts)
    if len(parts) != 2 or not sound or parts[0] == parts[1]:
        raise UserError(
            f"'{text}' is not a language pair.", "Write it as source-target, such as en-fr."
        )
    return parts[0], parts[1]
