"""A tiny corpus and a tiny run on it that can be pruned in a second."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from headcount.config import parse_config
from headcount.data.tokenizer import Tokenizer
from headcount.model.transformer import Transformer
from headcount.run import Run

ENGLISH = ["a", "the", "cat", "dog", "sees", "big"]
FRENCH = ["un", "le", "chat", "chien", "voit", "grand"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Word-for-word translations."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = random.Random(3)
    for split, count in (("train", 120), ("dev", 12), ("test", 12)):
        rows = [rng.choices(range(6), k=rng.randint(2, 7)) for _ in range(count)]
        for language, words in (("en", ENGLISH), ("fr", FRENCH)):
            lines = [" ".join(words[i] for i in row) + "\n" for row in rows]
            (folder / f"{split}.{language}").write_text("".join(lines))
    return folder


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """An untrained run of two layers with two heads each; pruning must never change it."""
    config = parse_config(
        {
            "data": {"corpus": None, "folder": str(corpus), "max_length": 20},
            "model": {"layers": 2, "heads": 2, "width": 8, "ff_width": 16, "dropout": 0.1},
            "training": {"batch_tokens": 60, "device_tokens": 25, "warmup": 5},
        },
        where="test",
    )
    source, target = Tokenizer.train(ENGLISH, 40), Tokenizer.train(FRENCH, 40)
    torch.manual_seed(0)
    model = Transformer(config.model, source.size, target.size)
    with torch.no_grad():  # heads of a random model do little; let them do something
        for attention in model.attentions().values():
            attention.out_weight.mul_(3)
    folder = tmp_path_factory.mktemp("baseline") / "run"
    Run(folder, config, model, source, target).save()
    return folder
