"""mtdata's interface, played by a module of the same shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from headcount.data.corpora import fetch_corpus
from headcount.data.mtdata_source import mtdata_source
from headcount.data.pairs import Pair, faulty
from headcount.errors import UserError
from headcount.progress import silent

CODES = {"en": "eng", "ru": "rus", "de": "deu"}


@dataclass(frozen=True)
class DatasetId:
    group: str
    name: str
    version: str
    langs: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> DatasetId:
        parts = text.split("-")
        if not 4 <= len(parts) <= 5:
            raise Exception("Dataset ID expected in format")
        return cls(parts[0], parts[1], parts[2], tuple(parts[3:]))

    def __str__(self) -> str:
        return "-".join((self.group, self.name, self.version, *self.langs))


@dataclass
class Entry:
    did: DatasetId
    rows: list[tuple[str | None, ...]]
    in_ext: str | None = None
    cite: tuple[str, ...] | None = None


class BCP47Tag:
    @classmethod
    def check_compat_swap(cls, wanted: tuple, given: tuple) -> tuple[bool, bool]:
        return set(wanted) == set(given), wanted == given[::-1]


@dataclass
class Cache:
    root: Path

    def get_entry(self, entry: Entry) -> Path:
        if entry.did.name == "unreachable":
            raise ConnectionError("no route")
        return Path("cached") / str(entry.did)


@dataclass
class Parser:
    path: Path
    ext: str | None
    ent: Entry

    def read_segs(self, show_pbar: bool = True) -> Iterator[tuple[str | None, ...]]:
        assert not show_pbar
        yield from self.ent.rows


NEWS = [(f"News number {i}.", f"Новость номер {i}.") for i in range(80)]
ENTRIES = [
    Entry(
        DatasetId.parse("Statmt-news-16-eng-rus"), [*NEWS, ("alone",), (None, "x")], cite=("b19",)
    ),
    Entry(
        DatasetId.parse("Statmt-newstest-2015-rus-eng"), [("Проверка.", "A check."), NEWS[3][::-1]]
    ),
    Entry(DatasetId.parse("Statmt-unreachable-1-eng-rus"), NEWS),
    Entry(DatasetId.parse("Leipzig-news-1-eng"), [("mono",)]),
]


@pytest.fixture
def mtdata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = {
        "mtdata": {"__version__": "0.5.1", "cache_dir": tmp_path / "mtdata"},
        "mtdata.index": {"INDEX": {entry.did: entry for entry in ENTRIES}},
        "mtdata.entry": {"DatasetId": DatasetId},
        "mtdata.parser": {"Parser": Parser},
        "mtdata.cache": {"Cache": Cache},
        "mtdata.iso": {},
        "mtdata.iso.bcp47": {"BCP47Tag": BCP47Tag, "bcp47": CODES.__getitem__},
    }
    for name, values in contents.items():
        module = ModuleType(name)
        module.__dict__.update(values)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("mtdata")
def test_datasets_become_a_corpus_with_its_test_set(tmp_path: Path) -> None:
    names = ("Statmt-news-16-eng-rus", "test=Statmt-newstest-2015-rus-eng")
    corpus = fetch_corpus("mtdata", tmp_path / "out", "en-ru", datasets=names)
    # The test set is swapped to en-ru, kept whole, and what it shares with train is left out.
    assert sorted(corpus.pairs("test")) == [("A check.", "Проверка."), NEWS[3]]
    assert corpus.counts["train"] + corpus.counts["dev"] == 79
    assert corpus.description["dropped"]["malformed"] == 2
    assert "b19" in corpus.description["attribution"]


@pytest.mark.usefixtures("mtdata")
def test_languages_are_turned_the_way_that_is_asked_for() -> None:
    found = list(mtdata_source(("ru", "en"), ("Statmt-news-16-eng-rus",)).read(silent))
    assert found[0] == Pair("Новость номер 0.", "News number 0.")
    assert found[-2:] == [faulty("malformed")] * 2


@pytest.mark.usefixtures("mtdata")
@pytest.mark.parametrize(
    ("pair", "dataset", "message"),
    [
        (("en", "ru"), "nonsense", "not the name of an mtdata dataset"),
        (("en", "ru"), "Statmt-other-1-eng-rus", "does not know the dataset"),
        (("en", "de"), "Statmt-news-16-eng-rus", "not a dataset of en-de"),
        (("en", "ru"), "Leipzig-news-1-eng", "not a dataset of en-ru"),
        (("en", "ru"), "eval=Statmt-news-16-eng-rus", "'eval'.*not a split"),
    ],
)
def test_wrong_names(pair: tuple[str, str], dataset: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mtdata_source(pair, (dataset,))


@pytest.mark.usefixtures("mtdata")
def test_a_failing_download_is_one_line() -> None:
    source = mtdata_source(("en", "ru"), ("Statmt-unreachable-1-eng-rus",))
    with pytest.raises(UserError, match=r"could not fetch .*ConnectionError: no route"):
        list(source.read(silent))


def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mtdata", None)
    with pytest.raises(UserError, match=r"pip install 'headcount\[mtdata\]'"):
        mtdata_source(("en", "ru"), ("Statmt-news-16-eng-rus",))
