"""Several corpora as one: shares, what is held out, and lists that make no sense."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import headcount
from headcount.config import Config
from headcount.data.cleaning import split_key
from headcount.data.corpora import CORPORA
from headcount.data.corpus_folder import Corpus
from headcount.data.mix import Part, mix_corpora, quotas
from headcount.data.pairs import KnownCorpus, Pair, Source
from headcount.errors import UserError
from headcount.progress import Progress, silent
from headcount.training.preparation import find_corpus


def known(name: str, numbers: range, pairs: tuple[str, ...] = ("en-fr",)) -> KnownCorpus:
    """A corpus that counts; corpora with numbers in common have sentences in common."""

    def read(progress: Progress) -> Iterator[Pair]:
        yield from (Pair(f"Sentence number {n}.", f"Phrase numéro {n}.") for n in numbers)

    source = Source(name, "A test", f"licence of {name}", name, ("en", "fr"), {"1": name}, read)
    return KnownCorpus(name, "counts", "CC0-1.0", lambda request: source, pairs)


@pytest.fixture(autouse=True)
def _three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    with (
        CORPORA.adding(known("first", range(400))),
        CORPORA.adding(known("second", range(300, 500))),
        CORPORA.adding(known("german", range(9), ("en-de",))),
    ):
        yield


def mix(out: Path, *parts: Part, pairs: int | None = None) -> Corpus:
    return mix_corpora(parts, out, "en-fr", pairs)


def test_all_of_two_corpora(tmp_path: Path) -> None:
    corpus = mix(tmp_path / "out", Part("first"), Part("second"))
    train = list(corpus.pairs("train"))
    assert len(train) == len(set(train)) == corpus.description["counts"]["train"]
    held_out = {}
    for split in ("dev", "test"):
        parts = [list(corpus.pairs(f"{split}.{name}")) for name in ("first", "second")]
        assert all(parts)
        assert [pair for part in parts for pair in part] == list(corpus.pairs(split))
        held_out[split] = {split_key(english) for english, _ in corpus.pairs(split)}
    kept = {split_key(english) for english, _ in train}
    assert not kept & (held_out["dev"] | held_out["test"])
    assert len(kept | held_out["dev"] | held_out["test"]) == 500
    about = corpus.description
    assert about["dropped"]["held out"] > 0  # of the hundred that both have
    assert about["read"] == sum(about["dropped"].values()) + sum(about["counts"].values()) == 600
    assert corpus.domains == ("first", "second")
    assert "licence of second" in about["licence"]


def test_shares_hold_and_nothing_is_repeated(tmp_path: Path) -> None:
    corpus = mix(tmp_path / "out", Part("first", 0.25), Part("second", 0.75))
    first, second = (corpus.description["parts"][name]["train"] for name in ("first", "second"))
    assert abs(first / (first + second) - 0.25) < 0.01
    everything = mix(tmp_path / "all", Part("first"), Part("second"))
    assert second == everything.description["parts"]["second"]["train"]  # it is what bounds it
    small = mix(tmp_path / "small", Part("first", 0.25), Part("second", 0.75), pairs=41)
    assert small.description["counts"]["train"] == 41
    assert set(small.pairs("train")) < set(corpus.pairs("train"))
    assert list(small.pairs("test")) == list(corpus.pairs("test"))


def test_the_same_mix_again_does_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mix(out, Part("first"), Part("second"))
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    mix(out, Part("first"), Part("second"))
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    with pytest.raises(UserError, match="Choose another --out"):
        mix(out, Part("first", 0.5), Part("second", 0.5))


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        ("first,german", "en-fr", "german does not have the language pair en-fr.*It has en-de"),
        ("first,german", None, "no language pair in common"),
        ("first=0.5,second=0.6", "en-fr", "0.5, 0.6 do not add up to 1"),
        ("first=1.5,second=-0.5", "en-fr", "second has a share of -0.5"),
        ("first=0,second=1", "en-fr", "first has a share of 0"),
        ("first=nan,second=0.5", "en-fr", "first has a share of nan"),
        ("first=0.5,second", "en-fr", "second has no share"),
        ("first=half,second=0.5", "en-fr", "not a share"),
        ("first,second,", "en-fr", "has an empty name"),
        ("first,second,first", "en-fr", "first is listed twice"),
        ("first,own", "en-fr", "own needs options of its own"),
        ("first,secnd", "en-fr", "no corpus 'secnd'. Did you mean 'second'"),
        ("debian-descriptions,libreoffice-help", None, "Add --pair en-fr or"),
    ],
)
def test_bad_lists(tmp_path: Path, name: str, pair: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        headcount.data.mix.make_corpus(name, tmp_path / "out", pair)
    assert not list(tmp_path.iterdir())


def test_too_many_pairs_for_the_shares(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"needs 300 training pairs of second.*at most"):
        mix(tmp_path / "out", Part("first", 0.25), Part("second", 0.75), pairs=400)
    assert not (tmp_path / "out").exists()


def test_quotas_add_up() -> None:
    names = ["a", "b", "c"]
    assert quotas([10, 20, 30], [None] * 3, None, names) == [10, 20, 30]
    assert sum(quotas([100, 100, 100], [None] * 3, 100, names)) == 100
    assert quotas([100, 10, 100], [0.5, 0.25, 0.25], None, names) == [20, 10, 10]


def test_a_recipe_names_several(tmp_path: Path) -> None:
    recipe = Config.model_validate({"data": {"corpus": ["first", "second"]}})
    assert find_corpus(recipe.data, silent).domains == ("first", "second")
    shares = [{"name": "first", "share": 0.5}, {"name": "second", "share": 0.5}]
    recipe = Config.model_validate({"data": {"corpus": shares, "pairs": 20}})
    assert find_corpus(recipe.data, silent).counts["train"] == 20
    assert recipe.data.corpus_argument == "first=0.5,second=0.5"
    assert recipe.data.name == "first + second"


def test_as_a_function(tmp_path: Path) -> None:
    import headcount.data

    corpus = headcount.data("first,second", tmp_path / "out")
    assert json.loads((tmp_path / "out/corpus.json").read_text())["name"] == "mix"
    assert (
        corpus.counts["train"] == headcount.data("first,second", tmp_path / "out").counts["train"]
    )
