"""From any source of pairs to a clean folder of splits."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from headcount.data import corpora
from headcount.data.cleaning import split_key
from headcount.data.corpora import fetch_corpus
from headcount.data.corpus_folder import Corpus
from headcount.errors import UserError
from headcount.files import read_lines

WORDS = [
    "red",
    "blue",
    "old",
    "new",
    "cat",
    "dog",
    "house",
    "tree",
    "runs",
    "sees",
    "here",
    "there",
]


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    chosen = random.Random(seed)
    english = {" ".join(chosen.choices(WORDS, k=6)).capitalize() + "." for _ in range(count * 2)}
    return [(e, f"«{e[::-1]}»") for e in sorted(english)[:count]]


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_tsv(tmp_path / "mine.tsv", sentences(300))


def own(table: Path, out: Path, pairs: int | None = None, **options: object) -> Corpus:
    return fetch_corpus("own", out, "en-xx", pairs, origin=table, **options)  # type: ignore[arg-type]


def content(corpus: Corpus) -> dict[str, list[tuple[str, str]]]:
    return {split: sorted(corpus.pairs(split)) for split in corpus.splits}


def test_a_corpus_is_complete_and_described(table: Path, tmp_path: Path) -> None:
    corpus = own(table, tmp_path / "out")
    assert sorted(pair for some in content(corpus).values() for pair in some) == sentences(300)
    about = json.loads((tmp_path / "out/corpus.json").read_text(encoding="utf-8"))
    assert about["counts"] == corpus.counts == {"train": 270, "dev": 15, "test": 15}
    assert about["read"] == 300
    assert about["languages"] == {"source": "en", "target": "xx"}
    assert {"source", "licence", "attribution", "seed", "pairs", "inputs", "limits"} <= set(about)
    assert sum(about["dropped"].values()) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        ["corpus.json", *(f"{s}.{side}" for s in ("train", "dev", "test") for side in ("en", "xx"))]
    )


def test_every_dropped_pair_is_counted(tmp_path: Path) -> None:
    good = sentences(100)
    bad = [
        ("", "rien"), ("12", "13"), ("Same text.", "same text"), ("x" * 1200, "y" * 1200),
        ("Short.", "z" * 400), ("Broken\ufffd text", "texte"), good[0], good[1], ("alone", None),
    ]  # fmt: skip
    path = tmp_path / "mine.tsv"
    write_tsv(path, good)
    with path.open("a", encoding="utf-8") as handle:
        handle.writelines(f"{a}\n" if b is None else f"{a}\t{b}\n" for a, b in bad)
    about = own(path, tmp_path / "out").description
    assert {name: count for name, count in about["dropped"].items() if count} == {
        "malformed": 1, "empty": 1, "misencoded": 1, "no letters": 1, "identical": 1,
        "too long": 1, "unequal": 1, "duplicate": 2,
    }  # fmt: skip
    assert about["read"] == 109 == sum(about["dropped"].values()) + sum(about["counts"].values())


def test_order_of_the_input_changes_nothing_but_order(table: Path, tmp_path: Path) -> None:
    shuffled = sentences(300)
    random.Random(1).shuffle(shuffled)
    other = write_tsv(tmp_path / "other.tsv", shuffled)
    for pairs in (None, 100):
        first = own(table, tmp_path / f"a{pairs}", pairs)
        second = own(other, tmp_path / f"b{pairs}", pairs)
        assert content(first) == content(second)


def test_no_english_sentence_is_in_two_splits(tmp_path: Path) -> None:
    # Every sentence comes with other punctuation, case and translations.
    pairs = [
        (variant, f"{translation} {number}")
        for english, translation in sentences(200)
        for number, variant in enumerate((english, english.upper(), english[:-1] + "!"))
    ]
    corpus = own(write_tsv(tmp_path / "m.tsv", pairs), tmp_path / "out")
    keys = {s: {split_key(e) for e, _ in corpus.pairs(s)} for s in corpus.splits}
    assert not keys["train"] & keys["dev"]
    assert not keys["train"] & keys["test"]
    assert not keys["dev"] & keys["test"]
    assert sum(corpus.counts.values()) == 600


def test_a_sample_comes_from_train_alone(table: Path, tmp_path: Path) -> None:
    whole, sample = own(table, tmp_path / "whole"), own(table, tmp_path / "sample", 50)
    full, part = content(whole), content(sample)
    assert len(part["train"]) == 50
    assert set(part["train"]) < set(full["train"])
    assert (part["dev"], part["test"]) == (full["dev"], full["test"])
    assert sample.description["dropped"]["not sampled"] == 220
    other = own(table, tmp_path / "other", 50, seed=1)
    assert content(other)["train"] != part["train"]


def test_too_large_a_sample_names_what_there_is(table: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="271 asks for more than the 270 training pairs"):
        own(table, tmp_path / "out", 271)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="--pairs 0"):
        own(table, tmp_path / "out", 0)


def test_the_same_corpus_again_does_nothing(table: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    own(table, out, 50)
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert own(table, out, 50).counts["train"] == 50
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before


@pytest.mark.parametrize("change", ["seed", "pairs", "input", "damage", "lost", "foreign"])
def test_another_corpus_in_the_way_is_an_error(table: Path, tmp_path: Path, change: str) -> None:
    out = tmp_path / "out"
    own(table, out)
    options: dict[str, object] = {}
    if change == "seed":
        options = {"seed": 3}
    elif change == "pairs":
        options = {"pairs": 20}
    elif change == "input":
        write_tsv(table, sentences(299))
    elif change == "damage":
        (out / "dev.en").write_text("changed\n", encoding="utf-8")
    elif change == "lost":
        (out / "dev.en").unlink()
    else:
        (out / "corpus.json").unlink()
    left = sorted(path.name for path in out.iterdir())
    with pytest.raises(UserError, match="Choose another --out"):
        own(table, out, **options)  # type: ignore[arg-type]
    assert sorted(path.name for path in out.iterdir()) == left


def test_an_empty_folder_may_be_filled(table: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert own(table, tmp_path / "out").counts["train"] == 270


def test_nothing_is_left_after_a_failure(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(corpora, "_write_splits", full_disk)
    with pytest.raises(UserError, match="No space left on the disk"):
        own(table, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.tsv"]


def test_nothing_passes_the_filters(tmp_path: Path) -> None:
    table = write_tsv(tmp_path / "m.tsv", [("1", "2"), ("", "x")])
    with pytest.raises(UserError, match=r"Not one of the 2 pairs.*1 no letters, 1 empty"):
        own(table, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        ("tatoeba-en-frr", None, "Did you mean 'tatoeba-en-fr'"),
        ("nothing like it", None, "There is no corpus .*Choose among .*builtin"),
        ("tatoeba-en-fr", "en-de", "does not have the language pair en-de.*It has en-fr"),
        ("libreoffice-help", None, "several language pairs.*en-ru or en-de or en-fr"),
        ("own", None, "Add --from"),
        ("own", "english", "not a language pair"),
        ("own", "en-en", "not a language pair"),
        ("opensubtitles", "en-ru", "Add --from"),
        ("mtdata", "en-ru", "Add --pair and --dataset"),
    ],
)
def test_bad_requests(tmp_path: Path, name: str, pair: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fetch_corpus(name, tmp_path / "out", pair)
    assert not list(tmp_path.iterdir())


def test_text_is_normalised_on_disk(tmp_path: Path) -> None:
    pairs = [(f"{e}\u00a0\x07", f"e\u0301 {x}") for e, x in sentences(50)]
    corpus = own(write_tsv(tmp_path / "m.tsv", pairs), tmp_path / "out")
    for path in (corpus.path("train", side) for side in ("source", "target")):
        for line in read_lines(path):
            assert line == line.strip()
            assert not {"\u00a0", "\x07", "\u0301"} & set(line)


def test_progress_reaches_its_ends(table: Path, tmp_path: Path) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    own(table, tmp_path / "out", progress=lambda stage, n, of: seen.__setitem__(stage, (n, of)))
    assert seen["Reading pairs"] == (300, 300)
    assert seen["Writing splits"] == (300, 300)
