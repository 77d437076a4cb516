"""Tiny random MarianMT checkpoints, made by `transformers` itself, with SentencePiece models.

Fixtures skip where an extra is not installed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.config import Config
from headcount.data.builtin import generate
from headcount.data.tokenizer import Tokenizer
from headcount.heads import Head
from headcount.model.gating import remove_heads
from headcount.run import Run
from interop import marian_checkpoints

PAIRS = 1200


def need(package: str, extra: str) -> Any:
    """A package, or a skipped test."""
    return pytest.importorskip(package, reason=f"needs {package}: headcount[{extra}]")


@pytest.fixture(scope="session")
def english() -> list[str]:
    """English sentences of the built-in corpus."""
    return [sentence.text for sentence, _ in generate(PAIRS)]


@pytest.fixture(scope="session")
def french() -> list[str]:
    """Their translations."""
    return [translation for _, translation in generate(PAIRS)]


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library, without its bars and advice."""
    need("sentencepiece", "marian")
    library = need("transformers", "marian")
    library.utils.logging.disable_progress_bar()
    library.utils.logging.set_verbosity_error()
    return library


@pytest.fixture(scope="session")
def train_sentencepiece() -> Callable[..., bytes]:
    """`train_sentencepiece(lines, **settings)`: a SentencePiece model, in one thread."""
    need("sentencepiece", "marian")
    return marian_checkpoints.train_sentencepiece


@pytest.fixture(scope="session")
def sentencepiece_models(
    train_sentencepiece: Callable[..., bytes], english: list[str], french: list[str]
) -> tuple[bytes, bytes]:
    """Of both sides of the built-in corpus."""
    return train_sentencepiece(english[:600]), train_sentencepiece(french[:600])


@pytest.fixture(scope="session")
def make_checkpoint(
    transformers: Any, sentencepiece_models: tuple[bytes, bytes]
) -> Callable[..., Path]:
    """`make_checkpoint(folder, seed, separate, generation, **settings)`: see `make_marian`."""
    return functools.partial(marian_checkpoints.make_marian, transformers, sentencepiece_models)


@pytest.fixture(scope="session")
def marian_folder(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One checkpoint for all tests that only read it."""
    return make_checkpoint(tmp_path_factory.mktemp("marian") / "opus-mt-en-fr")


@pytest.fixture(scope="session")
def marian_run(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Its run; not to be changed."""
    from headcount.interop.importing import import_run

    return import_run(marian_folder, tmp_path_factory.mktemp("runs") / "imported").run


@pytest.fixture(scope="session")
def own_tokenizer(english: list[str], french: list[str]) -> Tokenizer:
    """BPE as `headcount train` makes it."""
    return Tokenizer.train([*english[:300], *french[:300]], 300)


@pytest.fixture(scope="session")
def make_run(make_model: Callable[..., Any], own_tokenizer: Tokenizer) -> Callable[..., Run]:
    """`make_run(seed, gone, **model)`: a run with random weights, without the heads `gone`.

    The blocks' weights are large, so that what it writes depends on what it reads; but not so
    large where positions are biases only that rounding decides where its heads look.
    """

    def make(seed: int = 0, gone: Iterable[str] = (), **changes: Any) -> Run:
        size = own_tokenizer.size
        settings = {"vocabulary": (size, size), "double": False, "max_positions": 128}
        model = make_model(seed, **(settings | changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2 and name.startswith(("encoder.", "decoder.")):
                    parameter.mul_(1.0 if model.config.positions == "none" else 2.5)
        if gone:
            model = remove_heads(model, map(Head.parse, gone))
        config = Config(model=model.config)
        return Run(Path(f"run-{seed}"), config, model, own_tokenizer, own_tokenizer)

    return make
