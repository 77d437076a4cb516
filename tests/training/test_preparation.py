"""Preparing a corpus: once, whoever else is at it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from headcount.config import Config
from headcount.training import preparation
from headcount.training.preparation import prepare_training


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
