"""The user's own files in all their forms."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headcount.data.corpora import fetch_corpus
from headcount.data.pairs import Pair
from headcount.data.parallel_text import find_files, own_source, split_of
from headcount.errors import UserError
from headcount.progress import silent

PAIR = ("en", "ru")


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "-").replace("_", ".")
        packed = path.suffix == ".gz"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())


def read(origin: Path) -> list[tuple[str, str]]:
    return [(p.source, p.target) for p in own_source(origin, PAIR).read(silent)]


def test_two_plain_files(tmp_path: Path) -> None:
    put(tmp_path, mine_en="a\nb\n", mine_ru="1\n2\n", notes_txt="ignored")
    assert read(tmp_path) == [("a", "1"), ("b", "2")]


def test_one_side_packed(tmp_path: Path) -> None:
    put(tmp_path, mine_en_gz="a\nb\n", mine_ru="1\n2\n")
    assert read(tmp_path) == [("a", "1"), ("b", "2")]


def test_a_table_alone_and_packed(tmp_path: Path) -> None:
    put(tmp_path, mine_tsv_gz="a\t1\tmore\nb\n")
    found = list(own_source(tmp_path / "mine.tsv.gz", PAIR).read(silent))
    assert found == [Pair("a", "1"), Pair("", "", fault="malformed")]
    assert list(own_source(tmp_path, PAIR).read(silent)) == found


def test_several_files_of_both_kinds(tmp_path: Path) -> None:
    put(tmp_path, one_en="a\n", one_ru="1\n", two_en="b\n", two_ru="2\n", three_tsv="c\t3\n")
    assert sorted(read(tmp_path)) == [("a", "1"), ("b", "2"), ("c", "3")]


def test_tables_that_name_another_pair_are_left_alone(tmp_path: Path) -> None:
    put(tmp_path, x_en__ru_tsv="a\t1\n", x_en__de_tsv="a\t9\n")
    assert [group[0].name for group in find_files(tmp_path, PAIR)] == ["x.en-ru.tsv"]


def test_names_tell_splits() -> None:
    names = {"tatoeba.en-ru.train.tsv.gz": "train", "valid.en": "dev", "newstest2014.en": "test"}
    names |= {"my-test.en": "test", "dev_2013.en": "dev", "latest.en": ""}
    names |= {"val.en": "dev", "devtest.en": "dev", "validation.fr": "dev", "valley.en": ""}
    names |= {"test_2016_flickr.en": "test", "testimony.en": "", "training.de": "train"}
    assert {name: split_of(name) for name in names} == names


def test_ones_own_splits_are_kept_and_train_gives_way(tmp_path: Path) -> None:
    put(
        tmp_path,
        train_en="".join(f"sentence {i}\n" for i in range(50)),
        train_ru="".join(f"фраза {i}\n" for i in range(50)),
        dev_en="Sentence 3!\nanother one\n", dev_ru="фраза\nещё одна\n",
        test_en="sentence 4\n", test_ru="четвёртая\n",
    )  # fmt: skip
    corpus = fetch_corpus("own", tmp_path / "out", "en-ru", origin=tmp_path)
    assert corpus.counts == {"train": 48, "dev": 2, "test": 1}
    assert corpus.description["dropped"]["held out"] == 2
    assert list(corpus.pairs("test")) == [("sentence 4", "четвёртая")]


@pytest.mark.parametrize(("english", "russian"), [(3, 5), (5, 3), (0, 1)])
def test_different_numbers_of_lines(tmp_path: Path, english: int, russian: int) -> None:
    put(tmp_path, mine_en="a\n" * english, mine_ru="b\n" * russian)
    with pytest.raises(UserError, match=f"en has {english} lines but .*ru has {russian}"):
        read(tmp_path)


def test_errors_for_people(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither files that end in .en and .ru nor .tsv"):
        read(tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        read(tmp_path / "nowhere")
    put(tmp_path, mine_en="a\n")
    with pytest.raises(UserError, match=r"mine.en has no mine.ru beside it"):
        read(tmp_path)
    with pytest.raises(UserError, match="Add --pair"):
        own_source(tmp_path, None)
    (tmp_path / "mine.ru").write_bytes(b"\xff\xfe\n")
    with pytest.raises(UserError, match=r"mine.ru, line 1: not valid UTF-8"):
        read(tmp_path)
    (tmp_path / "mine.ru").unlink()
    (tmp_path / "mine.ru.gz").write_bytes(gzip.compress(b"b\n" * 1000)[:20])
    with pytest.raises(UserError, match=r"mine.ru.gz is damaged"):
        read(tmp_path)


def write_sides(folder: Path, name: str, texts: list[str]) -> None:
    (folder / f"{name}.en").write_text("".join(f"{t}\n" for t in texts), encoding="utf-8")
    (folder / f"{name}.de").write_text("".join(f"«{t[::-1]}»\n" for t in texts), encoding="utf-8")


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """The folder of a newcomer: train, val and two test sets that overlap with training."""
    folder = tmp_path / "captions"
    folder.mkdir()
    write_sides(folder, "train", [f"A man number {n}." for n in range(50)])
    write_sides(folder, "val", ["A val.", "A man number 1.", "42"])
    write_sides(folder, "test_2016", ["A test.", "A man number 2.", "A man number 2."])
    write_sides(folder, "test_2017", ["Another test.", "A test.", "A man number 3."])
    return folder


def test_several_test_sets_stay_apart_and_whole(captions: Path, tmp_path: Path) -> None:
    corpus = fetch_corpus("own", tmp_path / "out", "en-de", origin=captions)
    assert corpus.counts == {"train": 47, "dev": 3, "test": 6}
    assert corpus.description["dropped"]["held out"] == 3
    kept = {path.name for path in (tmp_path / "out").glob("test*.en")}
    assert kept == {"test.en", "test_2016.en", "test_2017.en"}
    for name in ("test_2016", "test_2017"):
        for language in ("en", "de"):
            made, brought = tmp_path / f"out/{name}.{language}", captions / f"{name}.{language}"
            assert made.read_text(encoding="utf-8") == brought.read_text(encoding="utf-8")
    assert corpus.description["options"]["splits"] == {
        "train.en + train.de": "train",
        "val.en + val.de": "dev",
        "test_2016.en + test_2016.de": "test",
        "test_2017.en + test_2017.de": "test",
    }


def test_a_set_that_is_called_test_beside_another(captions: Path, tmp_path: Path) -> None:
    write_sides(captions, "test", ["Third test."])
    corpus = fetch_corpus("own", tmp_path / "out", "en-de", origin=captions)
    assert corpus.counts["test"] == 7
    assert (tmp_path / "out/test.test.en").read_text(encoding="utf-8") == "Third test.\n"


def test_splits_by_hand(captions: Path, tmp_path: Path) -> None:
    splits = "train=train,dev=test_2016,test=test_2017"
    corpus = fetch_corpus("own", tmp_path / "out", "en-de", origin=captions, splits=splits)
    assert corpus.counts == {"train": 48, "dev": 2, "test": 3}  # "A test." is in both: not in dev
    assert not (tmp_path / "out/test_2017.en").exists()


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        ("train=train,dev=valid", "names among .*val"),
        ("train=train,train=train", "named twice"),
        ("tune=val", "no such split"),
        ("dev=val", "names no training text"),
        ("train", "no such split or no such file"),
    ],
)
def test_bad_splits(captions: Path, tmp_path: Path, splits: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fetch_corpus("own", tmp_path / "out", "en-de", origin=captions, splits=splits)
    assert not (tmp_path / "out").exists()
