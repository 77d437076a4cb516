"""Preparing a corpus: once, whoever else is at it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headcount.config import Config, parse_config
from headcount.errors import UserError
from headcount.run import load_config
from headcount.study.score_model import score_model
from headcount.training import preparation
from headcount.training.metrics import read_metrics
from headcount.training.preparation import prepare_training
from headcount.training.train import train


def silent(stage: str, done: int, total: int | None) -> None:
    """No progress."""


def test_trainings_that_begin_together_prepare_once(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[int] = []
    learn = preparation.Tokenizer.train

    def counted(*arguments: object) -> object:
        learned.append(1)
        return learn(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(preparation.Tokenizer, "train", counted)
    config = make_config()
    with ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(prepare_training, config.data, config.training, silent) for _ in range(4)
        ]
        prepared = [call.result() for call in calls]
    assert len(learned) == 2  # one for each side
    for other in prepared[1:]:
        assert np.array_equal(prepared[0].train.source_ids, other.train.source_ids)


def test_a_corpus_that_is_read_only_is_prepared_in_the_cache(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparation.os, "access", lambda path, mode: False)
    config = make_config()
    prepared = prepare_training(config.data, config.training, silent)
    assert prepared.train.folder.is_relative_to(tmp_path / "cache" / "prepared")
    assert len(prepared.train) == 200


def test_pairs_that_are_too_long_for_the_model_are_left_out(
    make_config: Callable[..., Config], corpus: Path, tmp_path: Path
) -> None:
    """On every split; test sentences are translated in parts."""
    for path in corpus.glob("*.??"):
        path.write_text(path.read_text() + "cat " * 40 + "\n")
    settings = make_config(updates=4).model_dump()
    settings["model"]["max_positions"] = 24
    config = parse_config(settings, "test")
    prepared = prepare_training(config.data, config.training, silent)
    assert (len(prepared.train), len(prepared.dev.shards)) == (200, 20)
    train(config, tmp_path / "run")
    scores = score_model(tmp_path / "run", corpus, 100)
    assert scores.lines == 21
    assert scores.dev_loss is not None


def test_changed_text_is_not_resumed(
    make_config: Callable[..., Config], corpus: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    train(make_config(updates=4), run)
    train(make_config(updates=5), run, resume=True)
    weights = (run / "model.safetensors").read_bytes()
    for split in ("dev", "train"):
        kept = {path: path.read_text() for path in corpus.glob(f"{split}.??")}
        for path, text in kept.items():
            path.write_text("".join(text.splitlines(keepends=True)[:15]))
        with pytest.raises(UserError, match=rf"The {split} text of .*run changed.*another --out"):
            train(make_config(updates=6), run, resume=True)
        for path, text in kept.items():
            path.write_text(text)
    assert (run / "model.safetensors").read_bytes() == weights
    (run / "trained_on.json").unlink()  # a run of an earlier version
    train(make_config(updates=6), run, resume=True)


def test_a_relative_folder_is_found_from_another_place(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = make_config(updates=4)
    config.data.folder = Path("corpus")
    train(config, tmp_path / "run")
    stored = load_config(tmp_path / "run")
    assert stored.data.folder == tmp_path / "corpus"
    train(config, tmp_path / "run", resume=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    stored.training.updates = 5
    train(stored, tmp_path / "run", resume=True)


@pytest.mark.parametrize(("side", "names"), [("source", "train.de"), ("target", "train.de")])
def test_a_missing_side_names_the_setting(
    make_config: Callable[..., Config], side: str, names: str
) -> None:
    config = make_config()
    setattr(config.data, side, "de")
    with pytest.raises(UserError, match=rf"no {names} \(it has .*train.en.*Set data\.{side} to"):
        prepare_training(config.data, config.training, silent)


def test_every_domain_of_a_mix_has_its_dev_loss(
    make_config: Callable[..., Config], corpus: Path, tmp_path: Path
) -> None:
    for language in ("en", "fr"):
        (corpus / f"dev.one.{language}").write_bytes((corpus / f"dev.{language}").read_bytes())
    (corpus / "corpus.json").write_text(
        json.dumps({"languages": {"source": "en", "target": "fr"}, "parts": {"one": {}}})
    )
    train(make_config(updates=6), tmp_path / "run")
    lines = [
        line for line in read_metrics(tmp_path / "run" / "metrics.jsonl") if "dev_loss" in line
    ]
    assert lines
    assert all(line["dev_loss one"] == line["dev_loss"] for line in lines)
