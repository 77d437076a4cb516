"""Debian's package descriptions: their parts, what is aligned, and how apt is asked for them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headcount.data.corpora import fetch_corpus
from headcount.data.debian_descriptions import (
    align_descriptions,
    fit,
    list_items,
    paragraphs,
    read_descriptions,
    sentences,
)
from headcount.data.fetch import sha256_of
from headcount.errors import UserError


def texts(english: str, other: str) -> list[tuple[str, str]]:
    """What is aligned of two descriptions, records that cannot be aligned left out."""
    pairs = align_descriptions(english.split("\n"), other.split("\n"))
    return [(pair.source, pair.target) for pair in pairs if not pair.fault]


def test_descriptions_are_read_by_checksum(tmp_path: Path) -> None:
    path = tmp_path / "Translation-fr"
    path.write_text(
        "Package: a\nDescription-md5: 11\nDescription-fr: un outil⋅:\n Une ligne\n  décalée.\n .\n"
        " Fin.\n\nPackage: b\nDescription-md5: 22\nDescription-fr: rien\nOther: x\n more\n",
        encoding="utf-8",
    )
    assert read_descriptions([path]) == {
        "11": ["un outil :", "Une ligne", " décalée.", ".", "Fin."],
        "22": ["rien"],
    }


def test_paragraphs_and_list_items() -> None:
    lines = ["It has:", "  * one thing", "    that goes on", "  * two", "Running text", "goes on",
             ".", "* flat", "item", "- other", ".", "text", "  alone", "  too"]  # fmt: skip
    first, second, third = paragraphs(lines)
    assert list_items(first) == [
        "It has:",
        "one thing that goes on",
        "two",
        "Running text goes on",
    ]
    assert list_items(second) == ["flat item", "other"]
    assert list_items(third) == ["text", "alone", "too"]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three? «Four.» (Five.)", 5),
        ("See e.g. Perl, i.e. one of them. It works.", 2),
        ("Écrit en C. Élégant.", 1),  # a single letter: better one sentence than half a one
        ("Version 2.0 of file.txt. 3 files.", 2),
        ("Das ist z. B. Text, ca. 5 Wörter. Über allem.", 2),
        ("Это программа. Она работает.", 2),
        ("no end", 1),
    ],
)
def test_sentences(text: str, count: int) -> None:
    cut = sentences(text)
    assert len(cut) == count
    assert " ".join(cut) == text


def test_sentences_are_paired_where_both_have_as_many() -> None:
    english = "a tool\nIt is small. It is fast.\n.\nIt has\n * one\n * two"
    assert texts(english, "un outil\nIl est petit. Il\nest rapide.\n.\nIl a\n - une\n - deux") == [
        ("a tool", "un outil"),
        ("It is small.", "Il est petit."),
        ("It is fast.", "Il est rapide."),
        ("It has", "Il a"),
        ("one", "une"),
        ("two", "deux"),
    ]
    # One sentence for two: the paragraph stays whole. Lists of different lengths are left out.
    assert texts(english, "un outil\nIl est petit et rapide.\n.\nIl a\n - une ou deux")[1:] == [
        ("It is small. It is fast.", "Il est petit et rapide."),
    ]
    # As many sentences, but they cannot be each other's translations.
    uneven = "It is small. This tool does a great many things to a great many files at once."
    turned = "Cet outil fait beaucoup de choses avec beaucoup de fichiers à la fois. Il est petit."
    assert texts(f"a\n{uneven}", f"b\n{turned}")[1:] == [(uneven, turned)]
    # A paragraph is missing: nothing below the synopsis is sure.
    assert texts(english, "un outil\nIl est petit.") == [("a tool", "un outil")]


APT = """#!{python}
import re, sys
from pathlib import Path
arguments = sys.argv[1:]
named = [argument[3:] for argument in arguments if argument.startswith("-c=")]
if not named:
    assert arguments[0] == "indextargets"
    print("Debian\\tfile:/archive/\\t$(SIGNED_BY)")
    sys.exit()
settings = Path(named[0]).read_text()
lists = Path(re.search('Dir::State::lists "(.*)"', settings)[1])
sources = Path(re.search('sourcelist "(.*)"', settings)[1]).read_text()
releases = re.findall(r"deb file:/archive/ (\\w+) main", sources)
shelf = Path("{shelf}")
for release in releases:
    for language in re.findall(r'"(\\w\\w)";', settings):
        name, made = f"{{release}}-{{language}}", lists / f"host_{{release}}-{{language}}"
        if not (shelf / name).exists():
            continue
        if "update" in arguments:
            made.write_bytes((shelf / name).read_bytes())
        else:
            print(made, release, language, sep="\\t")
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the archive has, and an apt that copies it to where it is told."""
    shelf, tools = tmp_path / "shelf", tmp_path / "bin"
    shelf.mkdir()
    tools.mkdir()
    for release, numbers in (("stable", range(60)), ("testing", range(40, 80))):
        for language, text in (("en", "Read the file"), ("fr", "Lisez le fichier")):
            stanzas = (
                f"Package: p{n}\nDescription-md5: {n:032}\n"
                f"Description-{language}: {text} number {n}\n {text} again {n}.\n\n"
                for n in numbers
            )
            (shelf / f"{release}-{language}").write_text("".join(stanzas), encoding="utf-8")
    (tools / "apt-get").write_text(APT.format(python=sys.executable, shelf=shelf))
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    return shelf


def test_from_lists_to_a_corpus(shelf: Path, tmp_path: Path) -> None:
    corpus = fetch_corpus("debian-descriptions", tmp_path / "out", "en-fr")
    assert sum(corpus.counts.values()) == 160
    for split in corpus.splits:
        for english, french in corpus.pairs(split):
            assert english.removeprefix("Read the file") == french.removeprefix("Lisez le fichier")
    assert "debian/copyright" in corpus.description["licence"]
    inputs = corpus.description["inputs"]
    assert inputs["stable-main-Translation-fr"] == sha256_of(shelf / "stable-fr")


def test_lists_are_kept_until_they_are_damaged(shelf: Path, tmp_path: Path) -> None:
    first = fetch_corpus("debian-descriptions", tmp_path / "out", "en-fr")
    for path in shelf.iterdir():
        path.write_text("")  # the archive moves on; the corpus stays what it was
    again = fetch_corpus("debian-descriptions", tmp_path / "out", "en-fr")
    assert again.description == first.description
    kept = tmp_path / "cache/debian-descriptions/en-fr/stable-main-Translation-fr"
    kept.write_text("damaged")
    with pytest.raises(UserError, match="Not one of the 0 pairs"):
        fetch_corpus("debian-descriptions", tmp_path / "other", "en-fr")


def test_a_language_that_apt_does_not_get(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"could not fetch the package descriptions in 'de'"):
        fetch_corpus("debian-descriptions", tmp_path / "out", "en-de")
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "cache/debian-descriptions").glob("en-*"))


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match="there is no apt-get here"):
        fetch_corpus("debian-descriptions", tmp_path / "out", "en-de")


def test_apt_without_a_debian_archive(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "bin/apt-get").write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match="no package list of a Debian archive"):
        fetch_corpus("debian-descriptions", tmp_path / "out", "en-fr")


def test_chinese_sentences_end_without_a_space_and_are_shorter() -> None:
    text = "该软件包提供文档。它还包含示例！“完”"
    assert sentences(text) == ["该软件包提供文档。", "它还包含示例！", "“完”"]
    assert sentences("该软件包提供文档。") == ["该软件包提供文档。"]
    english = ["This package provides the documentation.", "It also contains examples!"]
    assert fit(english, ["该软件包提供文档。", "它还包含示例！"])
    assert not fit(["This package provides the documentation."], ["文"])
