"""Opening a corpus folder, ours or the user's own."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headcount.data.corpus_folder import load_corpus
from headcount.errors import UserError


def fill(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    return folder


def test_a_folder_of_ones_own_without_a_description(tmp_path: Path) -> None:
    fill(tmp_path, train_ru="а\nб\n", train_en="a\nb\n", dev_ru="в\n", dev_en="c\n")
    corpus = load_corpus(tmp_path)
    assert (corpus.source_language, corpus.target_language) == ("en", "ru")  # English first
    assert corpus.counts == {"train": 2, "dev": 1}
    assert corpus.path("train", "target") == corpus.path("train", "ru") == tmp_path / "train.ru"
    assert list(corpus.pairs("train")) == [("a", "а"), ("b", "б")]
    assert corpus.trees("train") is None


def test_the_pair_may_be_told(tmp_path: Path) -> None:
    fill(tmp_path, train_ru="а\n", train_en="a\n", train_de="x\n")
    with pytest.raises(UserError, match=r"two training files.*de, en, ru"):
        load_corpus(tmp_path)
    corpus = load_corpus(tmp_path, "ru-de")
    assert list(corpus.pairs("train")) == [("а", "x")]


def test_packed_sides(tmp_path: Path) -> None:
    fill(tmp_path, train_en="a\nb\n")
    (tmp_path / "train.fr.gz").write_bytes(gzip.compress(b"c\nd\n"))
    corpus = load_corpus(tmp_path)
    assert list(corpus.pairs("train")) == [("a", "c"), ("b", "d")]


def test_different_numbers_of_lines(tmp_path: Path) -> None:
    fill(tmp_path, train_en="a\nb\n", train_fr="c\n")
    with pytest.raises(UserError, match=r"train.en has 2 lines but .*train.fr has 1"):
        load_corpus(tmp_path)


def test_a_line_separator_inside_a_sentence_does_not_shift_lines(tmp_path: Path) -> None:
    fill(tmp_path, train_en="a\u2028b\nc\n", train_fr="d\ne\n")
    assert load_corpus(tmp_path).counts == {"train": 2}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: None, "does not exist"),
        (lambda f: f.write_text("x"), "is a file"),
        (lambda f: fill(f, dev_en="a\n", dev_fr="b\n"), "endings found: none"),
        (lambda f: fill(f, train_en="a\n", train_fr="b\n", dev_en="c\n"), r"dev.fr does not exist"),
        (lambda f: fill(f, train_en="a\n", corpus_json="{}"), r"train.* such as|does not name"),
        (lambda f: fill(f, train_en="a\n", corpus_json="{"), "not valid JSON"),
        (lambda f: fill(f, corpus_json='{"languages": 3}'), "does not name the languages"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, make, message: str) -> None:
    folder = tmp_path / "corpus"
    make(folder)
    with pytest.raises(UserError, match=message):
        load_corpus(folder)


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "train.en").write_bytes(b"good\nb\xe9d\n")
    (tmp_path / "train.fr").write_bytes(b"bon\nmal\n")
    with pytest.raises(UserError, match=r"train.en, line 2: not valid UTF-8"):
        load_corpus(tmp_path)
