"""LibreOffice's help pages: paragraphs, their text, and packages that apt offers."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from headcount.data.corpora import fetch_corpus
from headcount.data.libreoffice import find_package, plain_text, read_pages, read_paragraphs
from headcount.errors import UserError

PAGE = """<html><body><h1 id="hd_id1" dir="auto"><a name="x"></a>Saving &amp; closing</h1>
<p id="par_id2" class="paragraph" dir="auto">Press <span class="keycode">Ctrl+S</span> to
 <span class="emph">save</span>.</p>
<p id="par_id3" class="code" dir="auto">print "no prose"</p>
<p id="par_id4" class="paragraph">Click the <img src="icon.svg" alt="Icon"> .</p>
<p id="par_id5" class="paragraph">[text/a.xhp#x not found].</p>
<p id="par_id2" class="paragraph">The same id again.</p>
<p class="paragraph">No id.</p></body></html>"""


def test_paragraphs_of_a_page() -> None:
    found = {name: " ".join(text.split()) for name, text in read_paragraphs(PAGE).items()}
    assert found == {
        "hd_id1": "Saving & closing",
        "par_id2": "Press Ctrl+S to save.",
        "par_id4": "Click the.",
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("one<br>two", "one two"),
        ("a &lt;b&gt; &eacute;", "a <b> é"),
        (
            'Open <span id="sw" class="switchinline"><span hidden="true" id="MACx" class="MAC">'
            'A - B</span> <span hidden="true" id="defaultx"><span class="emph">C</span> - D</span>'
            "</span> now",
            "Open C - D now",
        ),
        (
            '<span class="switchinline"><span id="WRITERx" class="WRITER">one</span>'
            '<span id="CALCx" class="CALC">two</span></span>',
            "one",
        ),
        (
            '<span class="switchinline"><span id="MACa">x</span><span id="defaulta">y'
            '<span class="switchinline"><span id="WINb">p</span><span id="defaultb">q</span></span>'
            "</span></span>z",
            "yqz",
        ),
        ("</span>stray <span>end", "stray end"),
    ],
)
def test_text_as_a_reader_sees_it(content: str, text: str) -> None:
    assert plain_text(content) == text


def build_package(folder: Path, name: str, language: str, sentence: str) -> Path:
    """A help package with two pages of paragraphs."""
    root = folder / name
    for page in ("swriter/save.html", "scalc/sum.html"):
        path = root / "usr/share/libreoffice/help" / language / "text" / page
        path.parent.mkdir(parents=True)
        rows = (f'<p id="par_id{i}" class="paragraph">{sentence} {page} {i}</p>' for i in range(30))
        path.write_text("\n".join(rows), encoding="utf-8")
    (root / "usr/share/libreoffice/help" / language / "contents.js").write_text("not a page")
    (root / "DEBIAN").mkdir()
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\n"
        "Description: test\n"
    )
    built = folder / f"{name}_1_all.deb"
    subprocess.run(
        ["dpkg-deb", "--build", "--root-owner-group", "-Znone", str(root), str(built)],
        check=True, capture_output=True,
    )  # fmt: skip
    return built


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An apt-get that offers two packages of ours, as the real one lists and downloads them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb on this machine")
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    listed = ""
    for suffix, language, text in (("en-us", "en-US", "Save the"), ("ru", "ru", "Сохраните")):
        deb = build_package(shelf, f"libreoffice-help-{suffix}", language, text)
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        line = f"'http://example.org/{deb.name}' {deb.name} {deb.stat().st_size} SHA256:{digest}"
        listed += f'    libreoffice-help-{suffix}) echo "{line}";;\n'
    tools = tmp_path / "bin"
    tools.mkdir()
    script = tools / "apt-get"
    script.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = --print-uris ]; then case "$3" in\n'
        f"{listed}    *) exit 100;; esac\n"
        f'else cp "{shelf}/$2"_1_all.deb . ; fi\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    return shelf


def test_from_packages_to_a_corpus(apt: Path, tmp_path: Path) -> None:
    corpus = fetch_corpus("libreoffice-help", tmp_path / "out", "en-ru")
    assert sum(corpus.counts.values()) == 60
    for split in corpus.splits:
        for english, russian in corpus.pairs(split):
            assert english.removeprefix("Save the") == russian.removeprefix("Сохраните")
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert corpus.description["licence"] == "MPL-2.0"


def test_pages_are_read_out_of_a_package(apt: Path) -> None:
    pages = dict(read_pages(apt / "libreoffice-help-ru_1_all.deb"))
    assert sorted(pages) == ["text/scalc/sum.html", "text/swriter/save.html"]
    damaged = apt / "damaged.deb"
    damaged.write_bytes(b"!<arch>\nnothing")
    with pytest.raises(UserError, match=r"damaged.deb is damaged"):
        list(read_pages(damaged))


def test_a_package_that_changed_on_the_way_is_refused(apt: Path, tmp_path: Path) -> None:
    with (apt / "libreoffice-help-ru_1_all.deb").open("ab") as handle:
        handle.write(b"x")
    with pytest.raises(UserError, match="is not the file that was expected"):
        fetch_corpus("libreoffice-help", tmp_path / "out", "en-ru")
    assert not (tmp_path / "out").exists()


def test_a_failing_download_says_what_to_do(apt: Path, tmp_path: Path) -> None:
    (apt / "libreoffice-help-ru_1_all.deb").unlink()
    with pytest.raises(UserError, match=r"could not download libreoffice-help-ru.*apt-get update"):
        fetch_corpus("libreoffice-help", tmp_path / "out", "en-ru")


def test_an_unknown_package_may_need_an_update(apt: Path) -> None:
    with pytest.raises(UserError, match=r"does not know the package .*apt-get update"):
        find_package("libreoffice-help-xx")


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="there is no apt-get here"):
        fetch_corpus("libreoffice-help", tmp_path / "out", "en-de")
