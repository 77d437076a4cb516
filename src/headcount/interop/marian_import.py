"""Models of the Marian toolkit itself become runs: those of its `.npz` and binary files.

Marian's encoder is the paper's: post-norm layers, sinusoidal positions. Small models for browsers
have the same encoder under a recurrent decoder (SSRU; Kim et al. 2019), which this package does
not have: of these the encoder is kept, whose heads can be named.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import inside, parsing
from headcount.interop.assembling import (
    MAX_POSITIONS,
    assembled,
    bias_with_padding,
    marian_position_base,
    padded_tokenizer,
    with_padding,
)
from headcount.interop.families.adapter import (
    OUTPUT,
    OUTPUT_BIAS,
    SOURCE,
    Languages,
)
from headcount.interop.marian_file import EMBEDDING, MarianFile, read_marian_file
from headcount.interop.search_settings import model_config
from headcount.interop.sentencepiece_model import read_sentencepiece, to_tokenizers
from headcount.run import Run
from headcount.yaml_reading import read_yaml

_USUAL: Mapping[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-postprocess-emb": "d",
    "transformer-ffn-depth": 2,
    "transformer-train-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-pool": False,
    "right-left": False,
    "transformer-tied-layers": [],
    "lemma-dim-emb": 0,
    "ulr": False,
}
"""The only values that this package can compute with."""

_ACTIVATIONS = ("relu", "swish")
"""Marian's gelu is another function than that of other toolkits."""

LARGEST_SETTINGS = 100_000
"""Bytes of a settings file; a larger one is a vocabulary."""

_BLOCKS = {"self_attention": "self", "cross_attention": "context", "feed_forward": "ffn"}
_PARTS = {
    "attention.in_weight": ("Wq", "Wk", "Wv"),
    "attention.in_bias": ("bq", "bk", "bv"),
    "attention.out_weight": ("Wo",),
    "attention.out_bias": ("bo",),
    "expand.weight": ("W1",),
    "expand.bias": ("b1",),
    "contract.weight": ("W2",),
    "contract.bias": ("b2",),
}
"""Our parts of a block, and Marian's names for them."""


def marian_run(path: Path, languages: Languages, out: Path) -> tuple[Run, list[str]]:
    """The run of a model file, and notes on what it does not keep.

    The model's vocabularies (`.spm`) are in the same folder.
    """
    file = read_marian_file(path)
    decoder = file.settings.get("transformer-decoder-autoreg", "self-attention")
    kept = decoder == "self-attention"
    _refuse_what_differs(file)
    with parsing(path, "Fetch the model again."):
        config = _model_config(file.settings, kept)
        tokenizers = _tokenizers(file, kept)
        used: set[str] = set()
        weights = sum(tensor.numel() for tensor in file.tensors.values())
        run = assembled(
            config,
            tokenizers,
            lambda own: _parameter(own, file.tensors, kept, used),
            weights,
            languages,
            out,
        )
        stacks = ("encoder_l", "decoder_l") if kept else "encoder_l"
        unknown = [name for name in file.tensors if name.startswith(stacks) and name not in used]
    unknown = [name for name in unknown if not name.endswith("_QuantMultA")]
    if unknown:
        raise UserError(
            f"{path} has parameters that are not known here, such as {unknown[0]}.",
            "Only Transformers with the usual layers are supported.",
        )
    lost = f"the decoder ({decoder}) is not kept: the run is an encoder without outputs"
    return run, [] if kept else [lost]


def _refuse_what_differs(file: MarianFile) -> None:
    for name, usual in _USUAL.items():
        if file.settings.get(name, usual) != usual:
            raise UserError(
                f"{file.path} has {name}: {file.settings[name]}.",
                f"Only {usual!r} is supported.",
            )
    activation = file.settings.get("transformer-ffn-activation")
    if activation not in _ACTIVATIONS:
        raise UserError(
            f"{file.path} has transformer-ffn-activation: {activation}.",
            f"Supported: {', '.join(_ACTIVATIONS)}.",
        )
    if not (file.settings.get("tied-embeddings-all") or file.settings.get("tied-embeddings")):
        raise UserError(
            f"{file.path} has an output layer of its own.",
            "Only models with tied-embeddings or tied-embeddings-all are supported.",
        )


def _model_config(settings: Mapping[str, Any], decoder: bool) -> ModelConfig:
    return model_config(
        {
            "encoder_layers": settings["enc-depth"],
            "decoder_layers": settings["dec-depth"] if decoder else 0,
            "heads": settings["transformer-heads"],
            "width": settings["dim-emb"],
            "ff_width": settings["transformer-dim-ffn"],
            "activation": settings["transformer-ffn-activation"],
            "norm": "post",
            "norm_epsilon": 1e-6,
            "position_base": marian_position_base(int(settings["dim-emb"])),
            "tie": "all" if settings.get("tied-embeddings-all") or not decoder else "target",
            "output_bias": decoder,
            "max_positions": MAX_POSITIONS,
        },
        where="the model's settings",
    )


def _parameter(own: str, theirs: Mapping[str, Tensor], decoder: bool, used: set[str]) -> Tensor:
    """One of our parameters from Marian's, which are `[inputs, outputs]` or `[1, outputs]`.

    An encoder alone has one table, that of its inputs. The names are added to `used`.
    """
    if own == OUTPUT_BIAS:
        return bias_with_padding(theirs["decoder_ff_logit_out_b"][0])
    if own in (OUTPUT, SOURCE):
        return with_padding(
            theirs[_table(theirs, "decoder" if own == OUTPUT and decoder else "encoder")]
        )
    stack, layer, block, part = own.split(".", 3)
    prefix = f"{stack}_l{int(layer) + 1}_{_BLOCKS[block]}_"
    if part.startswith("norm."):
        norm = "ffn" if block == "feed_forward" else "Wo"
        names = [f"{prefix}{norm}_ln_{'scale' if part == 'norm.weight' else 'bias'}"]
    else:
        names = [prefix + name for name in _PARTS[part]]
    used.update(names)
    rows = part.endswith("bias") or part.startswith("norm.")
    return torch.cat([theirs[name][0] if rows else theirs[name].T for name in names])


def _table(theirs: Mapping[str, Tensor], side: str) -> str:
    """The name of a side's embeddings."""
    return EMBEDDING if EMBEDDING in theirs else f"{side}_{EMBEDDING}"


def _tokenizers(file: MarianFile, decoder: bool) -> tuple[Tokenizer, Tokenizer]:
    sides = ("encoder", "decoder") if decoder else ("encoder", "encoder")
    source, target = (
        _tokenizer(path, len(file.tensors[_table(file.tensors, side)]))
        for path, side in zip(_vocabularies(file.path.parent), sides, strict=True)
    )
    return source, source if not decoder else target


def _vocabularies(folder: Path) -> list[Path]:
    """Source and target vocabulary: as a settings file in the folder says, or the only one."""
    for path in sorted(folder.glob("*.yml")):
        if path.stat().st_size > LARGEST_SETTINGS:
            continue  # a vocabulary
        names = read_yaml(path).get("vocabs")
        if isinstance(names, list) and len(names) == 2:
            other = [name for name in names if not str(name).endswith(".spm")]
            if other:
                raise UserError(
                    f"{folder} has a vocabulary that is not a SentencePiece model, {other[0]}.",
                    "Only .spm is supported; of OPUS-MT take the model for transformers.",
                )
            return [inside(folder, name) for name in names]
    models = sorted(folder.glob("*.spm"))
    if len(models) != 1:
        raise UserError(
            f"{folder} holds {len(models)} SentencePiece models (.spm) and no settings with"
            " `vocabs` that say which is which.",
            "Put the model's decoder settings (.yml) there.",
        )
    return models * 2


def _tokenizer(path: Path, size: int) -> Tokenizer:
    model = read_sentencepiece(path)
    pieces = [piece.piece for piece in model.pieces]
    if len(pieces) > size:
        raise UserError(f"{path} has {len(pieces)} pieces, the model {size}.", "Fetch both again.")
    return padded_tokenizer(to_tokenizers(model), [*pieces, *[""] * (size - len(pieces))])
