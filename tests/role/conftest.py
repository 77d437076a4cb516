"""A tiny untrained run with gold trees of the built-in corpus beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from headcount.config import parse_config
from headcount.data.builtin import generate
from headcount.data.conllu import Sentence, write_conllu
from headcount.data.tokenizer import Tokenizer
from headcount.model.transformer import Transformer
from headcount.run import Run, load_run


@dataclass(frozen=True)
class Place:
    """A folder with a run, its source sentences, their translations and their gold parses."""

    folder: Path
    sentences: list[Sentence]

    @property
    def run(self) -> Run:
        return load_run(self.folder / "run")

    @property
    def source(self) -> Path:
        return self.folder / "test.en"

    @property
    def reference(self) -> Path:
        return self.folder / "test.fr"

    @property
    def conllu(self) -> Path:
        return self.folder / "test.conllu"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    pairs = list(generate(60, seed=5))
    sentences = [sentence for sentence, _ in pairs]
    source = [sentence.text for sentence in sentences]
    target = [translation for _, translation in pairs]
    (tmp_path / "test.en").write_text("".join(f"{line}\n" for line in source), encoding="utf-8")
    (tmp_path / "test.fr").write_text("".join(f"{line}\n" for line in target), encoding="utf-8")
    write_conllu(tmp_path / "test.conllu", sentences)
    tokenizers = Tokenizer.train(source, 300), Tokenizer.train(target, 300)
    model = {"layers": 2, "heads": 2, "width": 16, "ff_width": 32, "max_positions": 64}
    config = parse_config({"model": model}, "test")
    torch.manual_seed(11)
    network = Transformer(config.model, tokenizers[0].size, tokenizers[1].size)
    counts = np.zeros(tokenizers[0].size, dtype=np.int64)
    for line in source:
        np.add.at(counts, tokenizers[0].encode(line), 1)
    run = Run(tmp_path / "run", config, network.eval(), *tokenizers, counts)
    run.save()
    return Place(tmp_path, sentences)
