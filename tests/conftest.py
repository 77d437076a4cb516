"""What tests of all stages share: tiny models and a tiny run, all with random weights."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from headcount.config import Config, ModelConfig
from headcount.data.tokenizer import Tokenizer
from headcount.model.transformer import Transformer
from headcount.run import Run

# A runner in the background ignores Ctrl-C, and so would every process that its tests start.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        handler = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, handler)

# Tests run in several processes at once; threads inside them would only fight.
torch.set_num_threads(1)

# A shared machine may be slow at any moment.
settings.register_profile("headcount", deadline=None)
settings.load_profile("headcount")

PAD, START, EOS = 0, 2, 3

SENTENCES = [
    "The cat sees the dog .",
    "A big dog and a small cat see it .",
    "Le chat voit le grand chien .",
    "I see you , and you see me !",
]

ModelMaker = Callable[..., Transformer]


def make_tiny_model(
    seed: int = 0,
    vocabulary: tuple[int, int] = (23, 19),
    double: bool = True,
    **changes: Any,
) -> Transformer:
    """A model in evaluation mode whose biases, norms and logits are far from their first values."""
    settings = {
        "encoder_layers": 2,
        "decoder_layers": 2,
        "heads": 3,
        "width": 12,
        "ff_width": 16,
        "max_positions": 64,
    }
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(**(settings | changes)), *vocabulary, PAD)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.output_weight.mul_(2.0)
    return (model.double() if double else model).eval()


@pytest.fixture(scope="session")
def make_model() -> ModelMaker:
    """`make_model(seed, norm="post", ...)`: see `make_tiny_model`."""
    return make_tiny_model


@pytest.fixture(scope="session")
def make_tokens() -> Callable[..., torch.Tensor]:
    """`make_tokens(lengths, size, seed)`: random sentences with EOS, padded `[batch, longest]`."""

    def make(lengths: list[int], size: int = 19, seed: int = 0) -> torch.Tensor:
        rng = torch.Generator().manual_seed(seed)
        rows = torch.full((len(lengths), max(lengths) + 1), PAD)
        for row, length in zip(rows, lengths, strict=True):
            row[:length] = torch.randint(EOS + 1, size, (length,), generator=rng)
            row[length] = EOS
        return rows

    return make


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved run; not to be changed."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    tokenizer = Tokenizer.train(SENTENCES, 60)
    model = make_tiny_model(vocabulary=(tokenizer.size, tokenizer.size), double=False)
    Run(folder, Config(model=model.config), model, tokenizer, tokenizer).save()
    return folder
