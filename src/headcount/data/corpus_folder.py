"""A corpus folder: `train.en`, `train.fr`, ... `test.fr`, and perhaps `corpus.json`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headcount.data.pairs import SPLITS, parse_language_pair
from headcount.errors import UserError
from headcount.files import read_json, read_lines, require_file

DESCRIPTION = "corpus.json"


@dataclass(frozen=True)
class Corpus:
    """Parallel text on disk, one sentence per line; line N of both sides is one pair."""

    folder: Path
    source_language: str
    target_language: str
    description: dict[str, Any] = field(default_factory=dict)
    """What `corpus.json` says; empty for a folder of the user's own."""

    def path(self, split: str, side: str) -> Path:
        """The file of a split ("train") and a side ("source", "target" or a language)."""
        language = {"source": self.source_language, "target": self.target_language}.get(side, side)
        return find_side(self.folder, split, language)

    def trees(self, split: str) -> Path | None:
        """Gold parses of the source side in CoNLL-U, line for line, where there are any."""
        path = self.folder / f"{split}.conllu"
        return path if path.is_file() else None

    @cached_property
    def splits(self) -> tuple[str, ...]:
        """The splits that the folder has."""
        sides = (self.source_language, self.target_language)
        return tuple(s for s in SPLITS if any(_exists(self.folder, s, lang) for lang in sides))

    @cached_property
    def counts(self) -> dict[str, int]:
        """Pairs in each split, counted once; sides of different lengths are an error."""
        return {split: count_pairs(self, split) for split in self.splits}

    @cached_property
    def domains(self) -> tuple[str, ...]:
        """The corpora that a mix has dev and test sets of: `dev.NAME.en`."""
        return tuple(
            name
            for name in self.description.get("parts", {})
            if all(_exists(self.folder, f"dev.{name}", side) for side in self.languages)
        )

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language

    def digest(self) -> str:
        """A hash of all text: if it differs, a file of some split was changed."""
        together = hashlib.sha256()
        for split in self.splits:
            for side in self.languages:
                together.update(f"{split}.{side}\n".encode())
                for line in read_lines(self.path(split, side)):
                    together.update(f"{line}\n".encode())
        return together.hexdigest()

    def pairs(self, split: str) -> Iterator[tuple[str, str]]:
        """The sentence pairs of a split, in order."""
        paths = [self.path(split, side) for side in ("source", "target")]
        try:
            yield from zip(*map(read_lines, paths), strict=True)
        except ValueError as error:
            raise UserError(
                f"{paths[0]} and {paths[1]} have different numbers of lines.",
                "Line N of one file must translate line N of the other.",
            ) from error


def load_corpus(folder: Path, pair: str | None = None, check: bool = True) -> Corpus:
    """Open a corpus folder, one that headcount made or the user's own.

    Without a `corpus.json` the languages are the given pair or, where exactly two sides are
    there, the endings of `train.*`, English first. `check` counts the lines of every file.
    """
    if not folder.is_dir():
        what = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(
            f"{folder} {what}.",
            "Give a corpus folder: `headcount data` makes one, `headcount data own` of your text.",
        )
    description: dict[str, Any] = {}
    if (folder / DESCRIPTION).exists():
        description = read_json(folder / DESCRIPTION)
    languages = parse_language_pair(pair) if pair else _languages(folder, description)
    corpus = Corpus(folder, *languages, description)
    for side in languages:
        corpus.path("train", side)
    if check:
        _ = corpus.counts
    return corpus


def corpus_of_run(folder: Path, source: str, target: str) -> Corpus:
    """The text of a run's languages; an encoder alone reads one side only, in both roles.

    That is `train.LANGUAGE`, or the only `train.*`, or else the source side of the folder's pair.
    """
    if source != target:
        return load_corpus(folder, f"{source}-{target}", check=False)
    if folder.is_dir() and not _exists(folder, "train", source):
        sides = _endings(folder)
        source = sides[0] if len(sides) == 1 else load_corpus(folder, check=False).source_language
    elif not folder.is_dir():
        load_corpus(folder)  # says what is wrong
    find_side(folder, "train", source)
    return Corpus(folder, source, source)


def count_pairs(corpus: Corpus, split: str) -> int:
    """How many pairs a split has; an error where its sides have different numbers of lines."""
    paths = [corpus.path(split, side) for side in ("source", "target")]
    sizes = [sum(1 for _ in read_lines(path)) for path in paths]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{paths[0]} has {sizes[0]} lines but {paths[1]} has {sizes[1]}.",
            "Line N of one file must translate line N of the other.",
        )
    return sizes[0]


def find_side(folder: Path, split: str, language: str) -> Path:
    """`train.en` or `train.en.gz` of a folder."""
    plain = folder / f"{split}.{language}"
    packed = plain.with_name(plain.name + ".gz")
    return packed if packed.is_file() and not plain.is_file() else require_file(plain)


def _exists(folder: Path, split: str, language: str) -> bool:
    return any((folder / f"{split}.{language}{end}").is_file() for end in ("", ".gz"))


def _languages(folder: Path, description: dict[str, Any]) -> tuple[str, str]:
    if description:
        try:
            named = description["languages"]
            return str(named["source"]), str(named["target"])
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{folder / DESCRIPTION} does not name the languages.", "Make the corpus again."
            ) from error
    endings = _endings(folder)
    if len(endings) != 2:
        shown = ", ".join(endings) or "none"
        raise UserError(
            f"{folder} should hold two training files such as train.en and train.fr "
            f"(endings found: {shown}).",
            "Name the two languages with --pair, or check the folder.",
        )
    first, second = sorted(endings, key=lambda language: language != "en")
    return first, second


def _endings(folder: Path) -> list[str]:
    """The endings of the training files that are text."""
    names = {p.name.removesuffix(".gz") for p in folder.glob("train.*")}
    return sorted({name.removeprefix("train.") for name in names} - {"conllu", "tsv", "json"})
