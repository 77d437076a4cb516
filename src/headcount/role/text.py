"""The sentences of an analysis, their parses and their translations, as one stream."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TypeVar

from headcount.data.conllu import Sentence, read_conllu
from headcount.data.splitting import spread_stream
from headcount.errors import UserError
from headcount.files import read_lines, require_file
from headcount.progress import Progress
from headcount.role.parses import cached_parses, require_parser

T = TypeVar("T")

Row = tuple[str, Sentence | None, str | None]
"""A sentence, its parse and its translation."""

ONE_A_LINE = (
    "Parse one sentence per line (CoreNLP: -ssplit.eolonly true), or give the CoNLL-U file alone."
)


@dataclass(frozen=True)
class Lines:
    """Lines of a file or a list, stripped; every iteration reads them again."""

    source: Path | Sequence[str]

    @classmethod
    def given(cls, source: Path | str | Sequence[str]) -> Lines:
        """An existing file, or sentences in memory."""
        if isinstance(source, str | Path):
            return cls(require_file(Path(source)))
        return cls(list(source))

    def __iter__(self) -> Iterator[str]:
        lines = read_lines(self.source) if isinstance(self.source, Path) else self.source
        return (line.strip() for line in lines)

    def __str__(self) -> str:
        return str(self.source) if isinstance(self.source, Path) else "the sentences"


@dataclass(frozen=True)
class Text:
    """What is analysed; every stream of it can be read again.

    lines: source sentences, None where they are the parses' own text; empty ones are left out
    references: their translations; conllu: their parses; parser: who made these
    limit: how many sentences to use, evenly spread over the whole
    parses_limited: the parses are of these sentences only, not of all lines
    """

    lines: Lines | None
    references: Lines | None = None
    conllu: Path | None = None
    parser: str = "none"
    limit: int | None = None
    parses_limited: bool = False

    @classmethod
    def given(
        cls,
        source: Path | str | Sequence[str] | None,
        conllu: Path | str | None,
        reference: Path | str | Sequence[str] | None,
        limit: int | None,
    ) -> Text:
        """The text of files or lists; it must not be empty."""
        if source is None and conllu is None:
            raise UserError("No sentences were given.", "Give --src, --conllu, or --text.")
        if limit is not None and limit < 1:
            raise UserError(f"{limit} sentences are too few.", "Ask for at least one.")
        lines = None if source is None else Lines.given(source)
        parses = None if conllu is None else require_file(Path(conllu))
        references = None if reference is None else Lines.given(reference)
        text = cls(lines, references, parses, "none" if parses is None else str(parses), limit)
        if not text.count():
            raise UserError(f"{text} has no sentence.", "Give a file that has some.")
        return text

    def __str__(self) -> str:
        return str(self.conllu if self.lines is None else self.lines)

    def count(self) -> int:
        """How many sentences there are, and will be used."""
        total = self._total()
        return total if self.limit is None else min(self.limit, total)

    def _total(self) -> int:
        if self.lines is not None:
            return sum(1 for line in self.lines if line)
        assert self.conllu is not None
        # The words of a sentence are numbered from 1, so that each has one line of this number.
        return sum(1 for line in read_lines(self.conllu) if line.startswith("1\t"))

    def parsed(
        self, folder: Path, language: str, processes: int | None, progress: Progress | None
    ) -> Text:
        """The same text with spaCy's parses, kept beside the source or else in `folder`."""
        parser = require_parser(language)
        name = "sentences"
        if self.lines is not None and isinstance(self.lines.source, Path):
            name = self.lines.source.name
            if os.access(self.lines.source.parent, os.W_OK):
                folder = self.lines.source.parent
        sentences = [line for line, _, _ in self.without_parses()]
        path = cached_parses(
            sentences, folder, name, parser, processes=processes, progress=progress
        )
        return replace(self, conllu=path, parser=parser, parses_limited=True)

    def without_parses(self) -> Iterator[Row]:
        """Every sentence to be used, with its translation."""
        return self._limited(self._translated(self._bare()))

    def rows(self) -> Iterator[Row]:
        """Every sentence to be used, with its parse and its translation."""
        if self.conllu is None:
            return self.without_parses()
        if self.lines is None:
            return self._limited(self._translated((s.text, s) for s in read_conllu(self.conllu)))
        if self.parses_limited:
            return self._with_parses(self.without_parses())
        return self._limited(self._with_parses(self._translated(self._bare())))

    def parses(self) -> Iterator[Sentence]:
        """The parses of the sentences to be used."""
        return (parse for _, parse, _ in self.rows() if parse is not None)

    def _bare(self) -> Iterator[tuple[str, Sentence | None]]:
        return ((line, None) for line in self.lines or ())

    def _translated(self, pairs: Iterable[tuple[str, Sentence | None]]) -> Iterator[Row]:
        """Add the translations; then leave out empty sentences."""
        if self.references is None:
            yield from ((line, parse, None) for line, parse in pairs if line)
            return
        for pair, reference in zip_longest(pairs, self.references):
            if pair is None or reference is None:
                raise UserError(
                    f"{self} and {self.references} have different numbers of lines.",
                    "Give one translation per sentence.",
                )
            if pair[0]:
                yield (*pair, reference)

    def _with_parses(self, rows: Iterator[Row]) -> Iterator[Row]:
        assert self.conllu is not None
        sentences = read_conllu(self.conllu)
        number = 0
        for number, (line, _, reference) in enumerate(rows, start=1):
            parse = next(sentences, None)
            if parse is None:
                raise UserError(
                    f"{self.conllu} has {number - 1} sentences, {self} has more.", ONE_A_LINE
                )
            yield line, parse, reference
        if next(sentences, None) is not None:
            raise UserError(f"{self} has {number} sentences, {self.conllu} has more.", ONE_A_LINE)

    def _limited(self, rows: Iterator[T]) -> Iterator[T]:
        """Evenly spread ones where there is a limit: corpora are often sorted by length."""
        if self.limit is None:
            return rows
        return spread_stream(rows, self.limit, self._total())
