"""The sentences of an analysis, their parses and their translations, as one stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from headcount.data.conllu import Sentence, read_conllu
from headcount.data.pairs import Progress
from headcount.errors import UserError
from headcount.files import read_lines, require_file
from headcount.roles.parses import Lines, cached_parses, paired, require_parser
from headcount.run import Run
from headcount.training.distribution import Workers


@dataclass(frozen=True)
class Text:
    """A stream that can be read again.

    lines: the source sentences, None where the parses' own text is used
    conllu: the parses; references: the translations; limit: the number of sentences to stop at
    parser: what made the parses
    """

    lines: Lines | None
    conllu: Path | None
    references: Lines | None
    limit: int | None
    parser: str

    @classmethod
    def given(
        cls,
        source: Path | str | Sequence[str] | None,
        conllu: Path | str | None,
        reference: Path | str | Sequence[str] | None,
        limit: int | None,
    ) -> Text:
        """The text of files or lists; each must be there and have something in it."""
        if source is None and conllu is None:
            raise UserError("No sentences were given.", "Give them with --src, --conllu, or both.")
        if limit is not None and limit < 1:
            raise UserError(f"{limit} sentences are too few.", "Ask for at least one.")
        lines = None if source is None else Lines(_opened(source), limit)
        parses = None if conllu is None else require_file(Path(conllu))
        references = None if reference is None else Lines(_opened(reference), limit)
        return cls(lines, parses, references, limit, "none" if parses is None else str(parses))

    def parsed(
        self, run: Run, processes: int | None, progress: Progress | None, workers: Workers
    ) -> Text:
        """The same text with spaCy's parses, made by the first process where there are several."""
        assert self.lines is not None
        parser = require_parser(run.config.data.source)
        folder = run.analysis
        if isinstance(self.lines.source, Path) and os.access(self.lines.source.parent, os.W_OK):
            folder = self.lines.source.parent
        if workers.leader:
            cached_parses(self.lines, folder, parser, processes=processes, progress=progress)
        workers.wait()
        path = cached_parses(self.lines, folder, parser)
        return Text(self.lines, path, self.references, self.limit, parser)

    def count(self) -> int | None:
        """How many sentences there are, where that is cheap to know."""
        return None if self.lines is None else sum(1 for _ in self.lines)

    def parses(self) -> Iterator[Sentence]:
        """The parses alone."""
        if self.conllu is None:
            return iter(())
        return islice(read_conllu(self.conllu), self.limit)

    def stream(self) -> Iterator[tuple[str, Sentence | None, str | None]]:
        """Every sentence with its parse and its reference."""
        pairs: Iterator[tuple[str, Sentence | None]]
        if self.lines is None:
            pairs = ((sentence.text, sentence) for sentence in self.parses())
        elif self.conllu is None:
            pairs = ((line, None) for line in self.lines)
        else:
            pairs = iter(paired(self.lines, self.conllu))
        if self.references is None:
            return ((line, parse, None) for line, parse in pairs)
        return self._with_references(pairs)

    def _with_references(
        self, pairs: Iterator[tuple[str, Sentence | None]]
    ) -> Iterator[tuple[str, Sentence | None, str | None]]:
        references = iter(self.references or ())
        for line, parse in pairs:
            reference = next(references, None)
            if reference is None:
                raise UserError(
                    f"{self.references} has fewer sentences than the source.",
                    "Give one translation for each sentence.",
                )
            yield line, parse, reference


def _opened(source: Path | str | Sequence[str]) -> Path | list[str]:
    """A file that exists and is not empty, or a list of sentences."""
    if not isinstance(source, str | Path):
        if not any(line.strip() for line in source):
            raise UserError("There is no sentence to analyse.", "Give at least one.")
        return list(source)
    path = require_file(Path(source))
    if not any(line.strip() for line in read_lines(path)):
        raise UserError(f"{path} has no sentence.", "Give a file with one sentence a line.")
    return path
