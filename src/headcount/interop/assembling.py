"""A run put together from the weights of a toolkit that begins outputs with zeros (Marian's way).

Vocabularies get one more row of zeros: the padding, which is also the start and is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headcount.config import ModelConfig, SearchConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.interop.families.adapter import Languages
from headcount.interop.search_settings import run_config
from headcount.interop.sentencepiece_model import read_sentencepiece, to_tokenizers
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
    languages: Languages,
    out: Path,
) -> Run:
    """The run of a model whose parameters `parameter` gives by our names."""
    source, target = tokenizers
    if not (languages.source and languages.target):
        raise UserError("The model does not say its languages.", "Add --languages, as in en-pt.")
    model = blank_model(config, source.size, target.size, source.pad, None, target.pad)
    for name, own in model.named_parameters():
        tensor = parameter(name)
        if tensor.shape != own.shape or not all_finite(tensor):
            raise ValueError(f"{name} is {list(tensor.shape)}, or not all of it is finite")
        own.data = tensor
    forbidden = (target.pad,) if config.decoder_layers else ()
    search = SearchConfig(normalisation="length", forbidden=forbidden)
    pair, sizes = (languages.source, languages.target), (source.size, target.size)
    return Run(out, run_config(config, search, pair, sizes), model.eval(), source, target)


def sinusoidal_base(width: int) -> float:
    """`position_base` where the longest wavelength is that of the last pair of neurons.

    Here it would be that of a pair beyond the last one.
    """
    pairs = width // 2
    return float(10000 ** (pairs / (pairs - 1)))


def with_padding(table: Tensor) -> Tensor:
    """An embedding table with the row of zeros."""
    return torch.cat([table, torch.zeros(1, table.shape[1])])


def bias_with_padding(bias: Tensor) -> Tensor:
    """An output bias by which the padding is never written."""
    return torch.cat([bias, torch.tensor([NEVER])])


def padded_tokenizer(sentencepiece: Path, names: list[str]) -> Tokenizer:
    """The tokenizer of a SentencePiece model whose pieces have the numbers of `names`."""
    if UNKNOWN not in names or END not in names:
        raise UserError(f"The vocabulary lacks {UNKNOWN} or {END}.", "Fetch the model again.")
    return Tokenizer(
        to_tokenizers(read_sentencepiece(sentencepiece)),
        pad=len(names),
        unk=names.index(UNKNOWN),
        start=len(names),
        eos=names.index(END),
        vocabulary=[*names, PADDING],
    )
