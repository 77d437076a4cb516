"""A tiny corpus and recipe on which training takes a second or two."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from headcount.config import Config, parse_config

WORDS = {"a": "un", "the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "big": "grand"}


def write_corpus(folder: Path, pairs: int = 200) -> Path:
    """Word-for-word translations of random sentences of 2 to 9 words."""
    rng = random.Random(7)
    folder.mkdir(parents=True)
    for split, count in (("train", pairs), ("dev", 20), ("test", 20)):
        english = [" ".join(rng.choices(list(WORDS), k=rng.randint(2, 9))) for _ in range(count)]
        french = [" ".join(WORDS[word] for word in line.split()) for line in english]
        (folder / f"{split}.en").write_text("".join(f"{line}\n" for line in english))
        (folder / f"{split}.fr").write_text("".join(f"{line}\n" for line in french))
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus")


@pytest.fixture
def make_config(corpus: Path) -> Callable[..., Config]:
    """A small configuration; keyword arguments go to the training section."""

    def make(**training: object) -> Config:
        settings = {
            "updates": 12,
            "batch_tokens": 200,
            "device_tokens": 60,
            "warmup": 5,
            "learning_rate_scale": 0.5,
            "log_every": 3,
            "evaluate_every": 6,
            "save_every": 4,
            "bleu_sentences": 4,
            "average_checkpoints": 0,
        }
        return parse_config(
            {
                "data": {
                    "corpus": None,
                    "folder": str(corpus),
                    "source_vocabulary": 60,
                    "target_vocabulary": 60,
                },
                "model": {"layers": 2, "heads": 2, "width": 16, "ff_width": 32, "dropout": 0.2},
                "training": settings | training,
            },
            where="test",
        )

    return make
