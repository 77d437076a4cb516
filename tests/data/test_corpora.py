"""The registry of corpora: one entry is all that a new corpus needs."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headcount.cli import data as data_module
from headcount.config import Config
from headcount.data.build import fetch_corpus
from headcount.data.corpora import CORPORA
from headcount.data.pairs import KnownCorpus, Pair, Request, Source, parse_language_pair
from headcount.progress import Progress, silent
from headcount.training.preparation import find_corpus


def dummy_source(request: Request) -> Source:
    def read(progress: Progress) -> Iterator[Pair]:
        yield from (Pair(f"Sentence number {n}.", f"Phrase numéro {n}.") for n in range(100))

    return Source("dummy", "A test", "CC0-1.0", "nobody", ("en", "fr"), {"dummy": "1"}, read)


DUMMY = KnownCorpus("dummy", "sentences that count", "CC0-1.0", dummy_source, ("en-fr",))


def test_every_entry_is_complete() -> None:
    for corpus in CORPORA.values():
        assert corpus.help
        assert corpus.licence
        assert all(parse_language_pair(pair) for pair in corpus.language_pairs)


def test_an_entry_is_all_that_a_corpus_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    with CORPORA.adding(DUMMY):
        assert sum(fetch_corpus("dummy", tmp_path / "out").counts.values()) == 100
        recipe = Config.model_validate({"data": {"corpus": "dummy"}})
        assert find_corpus(recipe.data, silent).description["name"] == "dummy"
        app = typer.Typer()
        app.command()(importlib.reload(data_module).data)
        assert "sentences that count" in CliRunner().invoke(app, ["--help"]).output
    importlib.reload(data_module)
