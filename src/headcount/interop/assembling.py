"""A run put together from the weights of a toolkit that begins outputs with zeros (Marian's way).

Vocabularies get one more row of zeros: the padding, which is also the start and is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.config import ModelConfig, SearchConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.interop.families.adapter import Languages
from headcount.interop.search_settings import run_config
from headcount.model.transformer import blank_model
from headcount.run import Run, all_finite

PADDING, UNKNOWN, END = "<pad>", "<unk>", "</s>"
NEVER = -1e9
"""The logit of the padding."""

MAX_POSITIONS = 512
"""Positions are computed, so that there is no limit; this is a generous one."""


def assembled(
    config: ModelConfig,
    tokenizers: tuple[Tokenizer, Tokenizer],
    parameter: Callable[[str], Tensor],
    weights: int,
    languages: Languages,
    out: Path,
) -> Run:
    """The run of a model whose parameters `parameter` gives by our names.

    `weights` is how many there are in all: a model that would have more comes from a damaged file.
    """
    source, target = tokenizers
    if not (languages.source and languages.target):
        raise UserError("The model does not say its languages.", "Add --languages, as in en-pt.")
    layers = config.encoder_layers + config.decoder_layers
    least = config.width * (source.size - 1 + layers * (4 * config.width + 2 * config.ff_width))
    if least > weights:
        raise ValueError(f"{weights} weights instead of {least} or more")
    sizes = (source.size, target.size)
    model = blank_model(config, *sizes, source.pad, None, target.pad)
    for name, own in model.named_parameters():
        try:
            tensor = parameter(name)
        except RuntimeError as error:  # parts that do not fit together
            raise ValueError(f"{name}: {error}") from error
        if tensor.shape != own.shape:
            raise ValueError(f"{name} has the shape {list(tensor.shape)}, not {list(own.shape)}")
        if not all_finite(tensor):
            raise ValueError(f"{name} has numbers that are not finite")
        own.data = tensor
    forbidden = (target.pad,) if config.decoder_layers else ()
    search = SearchConfig(normalisation="length", forbidden=forbidden)
    pair = (languages.source, languages.target)
    return Run(out, run_config(config, search, pair, sizes), model.eval(), source, target)


def marian_position_base(width: int) -> float:
    """`position_base` for Marian's positions.

    Marian spreads wavelengths so that the last pair of neurons has the longest; `sinusoids` would
    give that to the pair after the last.
    """
    pairs = width // 2
    return float(10000 ** (pairs / (pairs - 1)))


def with_padding(table: Tensor) -> Tensor:
    """An embedding table with the row of zeros."""
    return torch.cat([table, torch.zeros(1, table.shape[1])])


def bias_with_padding(bias: Tensor) -> Tensor:
    """An output bias by which the padding is never written."""
    return torch.cat([bias, torch.tensor([NEVER])])


def padded_tokenizer(content: dict[str, Any], names: list[str]) -> Tokenizer:
    """The tokenizer of a SentencePiece model's content whose pieces have the numbers of `names`."""
    if UNKNOWN not in names or END not in names:
        raise UserError(f"The vocabulary lacks {UNKNOWN} or {END}.", "Fetch the model again.")
    return Tokenizer(
        content,
        pad=len(names),
        unk=names.index(UNKNOWN),
        start=len(names),
        eos=names.index(END),
        vocabulary=[*names, PADDING],
    )
