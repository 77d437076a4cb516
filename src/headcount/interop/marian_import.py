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
    padded_tokenizer,
    sinusoidal_base,
    with_padding,
)
from headcount.interop.families.adapter import (
    OUTPUT,
    OUTPUT_BIAS,
    SOURCE,
    Languages,
    activation_of,
)
from headcount.interop.marian_file import EMBEDDING, MarianFile, read_marian_file
from headcount.interop.search_settings import model_config
from headcount.interop.sentencepiece_model import read_sentencepiece
from headcount.run import Run
from headcount.yaml_reading import read_yaml

_USUAL: Mapping[str, Any] = {
    "type": "transformer",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-top": "",
    "transformer-ffn-depth": 2,
    "transformer-train-position-embeddings": False,
    "transformer-no-projection": False,
    "transformer-tied-layers": [],
    "lemma-dim-emb": 0,
    "ulr": False,
}
"""The only values that this package can compute with."""


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
        parameters = file.tensors
        run = assembled(
            config, _tokenizers(file), lambda own: _parameter(own, parameters), languages, out
        )
    lost = f"the decoder ({decoder}) is not kept: the run is an encoder without outputs"
    return run, [] if kept else [lost]


def _refuse_what_differs(file: MarianFile) -> None:
    for name, usual in _USUAL.items():
        if file.settings.get(name, usual) != usual:
            raise UserError(
                f"{file.path} has {name}: {file.settings[name]}.",
                f"Only {usual!r} is supported: a Transformer with post-norm layers.",
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
            "activation": activation_of(str(settings["transformer-ffn-activation"])),
            "norm": "post",
            "norm_epsilon": 1e-6,
            "position_base": sinusoidal_base(int(settings["dim-emb"])),
            "tie": "all" if settings.get("tied-embeddings-all") or not decoder else "target",
            "output_bias": decoder,
            "max_positions": MAX_POSITIONS,
        }
    )


def _parameter(own: str, theirs: Mapping[str, Tensor]) -> Tensor:
    """One of our parameters from Marian's, which are `[inputs, outputs]` or `[1, outputs]`."""
    if own == OUTPUT_BIAS:
        return bias_with_padding(theirs["decoder_ff_logit_out_b"][0])
    if own in (OUTPUT, SOURCE):
        side = "encoder" if own == SOURCE or "decoder_Wemb" not in theirs else "decoder"
        return with_padding(theirs[EMBEDDING if EMBEDDING in theirs else f"{side}_{EMBEDDING}"])
    stack, layer, block, part = own.split(".", 3)
    prefix = f"{stack}_l{int(layer) + 1}_{_BLOCKS[block]}_"
    if part.startswith("norm."):
        norm = "ffn" if block == "feed_forward" else "Wo"
        return theirs[f"{prefix}{norm}_ln_{'scale' if part == 'norm.weight' else 'bias'}"][0]
    parts = [theirs[prefix + name] for name in _PARTS[part]]
    return torch.cat([each[0] if part.endswith("bias") else each.T for each in parts])


def _tokenizers(file: MarianFile) -> tuple[Tokenizer, Tokenizer]:
    sizes = file.settings["dim-vocabs"]
    source, target = (
        _tokenizer(path, int(size))
        for path, size in zip(_vocabularies(file.path.parent), sizes, strict=True)
    )
    return source, target


def _vocabularies(folder: Path) -> list[Path]:
    """Source and target vocabulary: as a settings file in the folder says, or the only one."""
    for path in sorted(folder.glob("*.yml")):
        names = read_yaml(path).get("vocabs")
        if isinstance(names, list) and len(names) == 2:
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
    pieces = [piece.piece for piece in read_sentencepiece(path).pieces]
    if len(pieces) > size:
        raise UserError(f"{path} has {len(pieces)} pieces, the model {size}.", "Fetch both again.")
    return padded_tokenizer(path, [*pieces, *[""] * (size - len(pieces))])
