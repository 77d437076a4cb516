"""OpenSubtitles in OPUS form, on small files of that form."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from headcount.data.corpora import fetch_corpus
from headcount.data.opensubtitles import opensubtitles_source, read_links
from headcount.data.pairs import Pair, faulty
from headcount.errors import UserError
from headcount.progress import silent

ENGLISH = ["Where is he?", "I do not know.", "He left", "an hour ago.", "Wait!", "What?"]
RUSSIAN = ["Где он?", "Я не знаю.", "Он ушёл час назад.", "Постой!", "Что?", "Ничего."]
LINKS = """\
  <link id="SL0" xtargets="1;1" overlap="0.95" />
  <link id="SL1" xtargets="2;2" overlap="0.9" />
  <link id="SL2" xtargets="3 4;3" overlap="0.93" />
  <link id="SL3" xtargets="5;4" overlap="0.89" />
  <link id="SL4" xtargets="6;" overlap="0.99" />
  <link id="SL5" xtargets="6;5 6" overlap="1.0" />
  <link id="SL6" xtargets="7;5" overlap="1.0" />
  <link id="SL7" xtargets="1;1" />
  <link id="SL8" xtargets="broken" overlap="1.0" />
"""


def document(sentences: list[str], tokenised: bool = False) -> str:
    body = ""
    for number, text in enumerate(sentences, start=1):
        if tokenised:
            words = enumerate(text.split(), start=1)
            text = "".join(f'<w id="{number}.{i}">{word}</w>\n' for i, word in words)
        body += (
            f'  <s id="{number}">\n    <time id="T{number}S" value="00:00:0{number},000" />\n'
            f"{text}\n    </s>\n"
        )
    return f'<?xml version="1.0" encoding="utf-8"?>\n<document id="1">\n{body}</document>\n'


def alignment(*groups: tuple[str, str, str]) -> str:
    head = (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        '<!DOCTYPE cesAlign PUBLIC "-//CES//DTD XML cesAlign//EN" "">\n<cesAlign version="1.0">\n'
    )
    body = "".join(
        f'<linkGrp targType="s" fromDoc="{a}" toDoc="{b}">\n{links}</linkGrp>\n'
        for a, b, links in groups
    )
    return head + body + "</cesAlign>\n"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One film, English raw and packed, Russian not packed, as OPUS's archives unpack."""
    films = tmp_path / "OpenSubtitles" / "raw"
    write(films / "en/2001/7/1.xml.gz", document(ENGLISH))
    write(films / "ru/2001/7/2.xml", document(RUSSIAN))
    group = ("en/2001/7/1.xml.gz", "ru/2001/7/2.xml.gz", LINKS)
    write(tmp_path / "en-ru.xml.gz", alignment(group))
    return tmp_path


def pairs(folder: Path, pair: tuple[str, str] = ("en", "ru"), overlap: float = 0.9) -> list[Pair]:
    return list(opensubtitles_source(folder, pair, overlap).read(silent))


def test_links_become_pairs(folder: Path) -> None:
    assert pairs(folder) == [
        Pair("Where is he?", "Где он?"),
        Pair("I do not know.", "Я не знаю."),
        Pair("He left an hour ago.", "Он ушёл час назад."),
        faulty("low overlap"),
        faulty("empty"),
        Pair("What?", "Что? Ничего."),
        faulty("malformed"),  # there is no sentence 7
        faulty("low overlap"),  # no overlap is told
        faulty("malformed"),
    ]


def test_the_threshold_is_an_option(folder: Path) -> None:
    assert Pair("Wait!", "Постой!") in pairs(folder, overlap=0.89)
    assert len([p for p in pairs(folder, overlap=0.95) if not p.fault]) == 2
    with pytest.raises(UserError, match="overlap of 2"):
        pairs(folder, overlap=2)


def test_languages_the_other_way_round(folder: Path) -> None:
    swapped = [p for p in pairs(folder, ("ru", "en")) if not p.fault]
    assert swapped[0] == Pair("Где он?", "Where is he?")


def test_tokenised_documents(tmp_path: Path) -> None:
    write(tmp_path / "xml/en/1.xml", document(["It 's late ."], tokenised=True))
    write(tmp_path / "xml/ru/2.xml", document(["Уже поздно ."], tokenised=True))
    link = '<link xtargets="1;1" overlap="1"/>'
    write(tmp_path / "xml/en-ru.xml", alignment(("en/1.xml.gz", "ru/2.xml.gz", link)))
    assert pairs(tmp_path) == [Pair("It 's late .", "Уже поздно .")]


def test_a_missing_film_is_counted_and_none_at_all_is_an_error(folder: Path) -> None:
    link = '<link xtargets="1;1" overlap="1"/>'
    here, away = ("en/2001/7/1.xml.gz", "ru/2001/7/2.xml.gz"), ("en/2001/8/1.xml.gz", "ru/x.xml")
    write(folder / "en-ru.xml", alignment((*away, link), (*here, link)))
    assert pairs(folder) == [faulty("malformed"), Pair("Where is he?", "Где он?")]
    write(folder / "en-ru.xml", alignment((*away, link)))
    with pytest.raises(UserError, match=r"None of the subtitle files.*en/2001/8/1.xml.gz"):
        pairs(folder)


def test_errors_for_people(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no alignment file de-en.xml.gz"):
        pairs(folder, ("en", "de"))
    with pytest.raises(UserError, match="--from"):
        opensubtitles_source(None, ("en", "ru"))
    with pytest.raises(UserError, match="not a folder"):
        pairs(tmp_path / "nowhere")
    write(folder / "en-ru.xml", "<cesAlign><linkGrp>")
    with pytest.raises(UserError, match=r"en-ru.xml is not sound XML"):
        pairs(folder)
    (folder / "en-ru.xml").unlink()
    packed = folder / "en-ru.xml.gz"
    packed.write_bytes(packed.read_bytes()[:60])
    with pytest.raises(UserError, match="not sound XML"):
        pairs(folder)


def test_memory_does_not_grow_with_the_number_of_films(tmp_path: Path) -> None:
    write(tmp_path / "en/1.xml", document(ENGLISH))
    write(tmp_path / "ru/2.xml", document(RUSSIAN))

    def peak(films: int) -> int:
        group = ("en/1.xml", "ru/2.xml", LINKS)
        write(tmp_path / "en-ru.xml", alignment(*[group] * films))
        tracemalloc.start()
        count = sum(1 for _ in read_links(tmp_path / "en-ru.xml", tmp_path, 0.9, silent))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count == 9 * films
        return used

    assert peak(500) < 1.25 * peak(150)  # one piece of the file is read ahead


def test_as_a_corpus(folder: Path, tmp_path: Path) -> None:
    numbered = [f"This is sentence number {i}." for i in range(60)]
    write(folder / "OpenSubtitles/raw/en/3.xml", document(numbered))
    write(
        folder / "OpenSubtitles/raw/ru/3.xml",
        document([f"Это фраза номер {i}." for i in range(60)]),
    )
    links = "".join(f'<link xtargets="{i};{i}" overlap="0.{90 + i % 10}"/>' for i in range(1, 61))
    write(folder / "en-ru.xml", alignment(("en/3.xml", "ru/3.xml", links)))
    corpus = fetch_corpus("opensubtitles", tmp_path / "out", "en-ru", origin=folder, overlap=0.95)
    assert sum(corpus.counts.values()) == 30
    assert corpus.description["dropped"]["low overlap"] == 30
    assert corpus.description["options"] == {"overlap": 0.95}
    for split in corpus.splits:
        for english, russian in corpus.pairs(split):
            assert english.split()[-1] == russian.split()[-1]
