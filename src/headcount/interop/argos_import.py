"""Packages of Argos Translate become runs: CTranslate2 models with a SentencePiece model beside.

    FOLDER/model/model.bin                a Transformer in CTranslate2's format, often with 8 bits
    FOLDER/model/shared_vocabulary.json   names of its tokens, or one file for each side
    FOLDER/sentencepiece.model
    FOLDER/metadata.json                  its languages

A package (`.argosmodel`) is a zip file of such a folder. Models that were converted from OPUS-MT
are the paper's base Transformer. The run is compared with CTranslate2's own log-probabilities,
computed in float32 from the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.data.batches import padded
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import parsing, read_json, require_file
from headcount.interop.assembling import (
    MAX_POSITIONS,
    UNKNOWN,
    assembled,
    bias_with_padding,
    marian_position_base,
    padded_tokenizer,
    with_padding,
)
from headcount.interop.checking import LIMIT, Sample, largest_difference
from headcount.interop.ctranslate2_export import open_translator
from headcount.interop.families.adapter import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Languages
from headcount.interop.search_settings import model_config
from headcount.interop.sentencepiece_model import (
    pieces_by_rank,
    read_sentencepiece,
    to_tokenizers,
)
from headcount.model.embedding import sinusoids
from headcount.run import Run

MODEL, PIECES, METADATA = Path("model") / "model.bin", "sentencepiece.model", "metadata.json"
_TYPES = ("<f4", "<i1", "<i2", "<i4", "<f2")
_ACTIVATIONS = ("relu", "gelu_tanh", "swish", "gelu")
_BLOCKS = {
    "self_attention": "self_attention",
    "cross_attention": "attention",
    "feed_forward": "ffn",
}
_USUAL = {
    "encoder/pre_norm": 0,
    "decoder/pre_norm": 0,
    "decoder/alibi": 0,
    "decoder/start_from_zero_embedding": 1,
}
"""The only values that this package can compute with."""

_OTHER_PIECES = 0.1
"""A vocabulary with more pieces than this that a SentencePiece model lacks was not made with it."""

_REMEDY = "Fetch the package again."

Variables = Mapping[str, np.ndarray]


def is_argos(folder: Path) -> bool:
    """Whether a folder is an unpacked package."""
    package = (folder / MODEL).is_file() and (folder / PIECES).is_file()
    return package and not (folder / "config.json").is_file()  # that of a model of transformers


def argos_run(folder: Path, languages: Languages, out: Path) -> tuple[Run, list[str]]:
    """The run of a package, and notes on what differs."""
    path = folder / MODEL
    with parsing(path, _REMEDY):
        variables = read_variables(path)
        config = _model_config(variables)
        said = _languages(folder)
        languages = Languages(languages.source or said.source, languages.target or said.target)
        source, target, notes = _tokenizers(folder)
        weights = sum(array.size for array in variables.values())
        run = assembled(
            config,
            (source, target),
            lambda own: _parameter(own, variables),
            weights,
            languages,
            out,
        )
        return run, notes


def read_variables(path: Path) -> Variables:
    """Settings and weights of a CTranslate2 model by their names, in float32."""
    content, at = path.read_bytes(), 0

    def take(kind: str, count: int = 1) -> Any:
        nonlocal at
        values = np.frombuffer(content, kind, count, at) if count else np.zeros(0, kind)
        at += values.nbytes
        return values

    def text() -> str:
        stored: bytes = take("<i1", int(take("<u2")[0])).tobytes()
        return stored.rstrip(b"\0").decode("utf-8")

    version = int(take("<u4")[0])
    if version not in (5, 6):
        raise UserError(f"{path} has the format {version}.", "Formats 5 and 6 are supported.")
    if text() != "TransformerSpec":
        raise UserError(
            f"{path} is not a Transformer with encoder and decoder.", "Only these are supported."
        )
    take("<u4")  # the specification's revision
    stored: dict[str, np.ndarray] = {}
    for _ in range(int(take("<u4")[0])):
        name = text()
        shape = take("<u4", int(take("<u1")[0])).tolist()
        kind, length = int(take("<u1")[0]), int(take("<u4")[0])
        data = take("<i1", length).tobytes()
        stored[name] = np.frombuffer(data, _TYPES[kind]).reshape(shape)
    variables = {name: _unscaled(name, stored) for name in stored}
    for _ in range(int(take("<u4")[0])):
        alias, name = text(), text()
        variables[alias] = variables[name]
    return variables


def argos_difference(run: Run, folder: Path, sample: Sample) -> float:
    """The largest difference of log-probabilities from CTranslate2's, in float32."""
    source, target = run.source_tokenizer, run.target_tokenizer
    targets = [[token for token in row if token < target.pad] for row in sample.target.tolist()]
    settings = folder / MODEL.parent / "config.json"
    with parsing(settings, _REMEDY):
        adds_end = settings.is_file() and read_json(settings).get("add_source_eos", False)
    end = [] if adds_end else [source.eos]
    try:
        scored = open_translator(folder / MODEL.parent, "float32").score_batch(
            [[source.tokens()[token] for token in [*tokens, *end]] for tokens in sample.sentences],
            [[target.tokens()[token] for token in tokens] for tokens in targets],
            max_input_length=0,
        )
    except RuntimeError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"CTranslate2 cannot read {folder} ({reason}).", _REMEDY) from error
    with torch.inference_mode():
        inputs = padded([[target.start, *tokens] for tokens in targets], target.pad)
        logits = F.log_softmax(run.model(sample.source, inputs), -1)
    own, theirs = [], []
    for row, tokens, score in zip(logits, targets, scored, strict=True):
        labels = torch.tensor([*tokens, target.eos])
        own.append(row[: len(labels)].gather(1, labels[:, None])[:, 0])
        theirs.append(torch.tensor(score.log_probs))
    return largest_difference(torch.cat(own), torch.cat(theirs), LIMIT, "model")


def _unscaled(name: str, stored: Variables) -> np.ndarray:
    scale = stored.get(f"{name}_scale")
    if scale is None:  # settings have no dimension
        return stored[name].astype(np.float32) if stored[name].ndim else stored[name]
    if stored[name].ndim != 2 or scale.size not in (1, len(stored[name])):
        raise ValueError(f"{name} has {scale.size} scales")
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        raise ValueError(f"{name} has scales that are not positive")
    return stored[name].astype(np.float32) / scale.reshape(-1, 1)


def _model_config(variables: Variables) -> ModelConfig:
    """As the file has it; what this package cannot compute with is refused."""
    for name, usual in _USUAL.items():
        if int(variables.get(name, np.array(usual))) != usual:
            raise _unusual(name, variables)
    table = variables["encoder/position_encodings/encodings"]
    width = table.shape[1]
    if not table.size:
        raise ValueError("no positions")
    # As transformers computes Marian's positions, and as Marian does.
    bases = (10000.0, marian_position_base(width))
    fitting = [b for b in bases if np.allclose(table, sinusoids(len(table), width, b), atol=1e-4)]
    if not fitting:
        raise UserError(
            "The model's positions are not Marian's sines and cosines.", "Only these are supported."
        )
    for stack in ("encoder", "decoder"):
        name = f"{stack}/scale_embeddings"  # a yes, or the factor
        factor = (
            variables[name] if variables[name].dtype.kind == "f" else variables[name] * width**0.5
        )
        if not np.isclose(factor, width**0.5):
            raise _unusual(name, variables)
    activation = int(variables.get("encoder/activation", np.array(0)))
    if activation not in range(len(_ACTIVATIONS)):
        raise _unusual("encoder/activation", variables)
    layers = {stack: _layers(stack, variables) for stack in ("encoder", "decoder")}
    return model_config(
        {
            "encoder_layers": layers["encoder"],
            "decoder_layers": layers["decoder"],
            "heads": int(variables["encoder/num_heads"]),
            "decoder_heads": int(variables["decoder/num_heads"]),
            "width": width,
            "ff_width": len(variables["encoder/layer_0/ffn/linear_0/weight"]),
            "decoder_ff_width": len(variables["decoder/layer_0/ffn/linear_0/weight"]),
            "activation": _ACTIVATIONS[activation],
            "norm": "post",
            "position_base": fitting[0],
            "tie": _tie(variables),
            "output_bias": True,
            "max_positions": MAX_POSITIONS,
        },
        where="the model's settings",
    )


def _layers(stack: str, variables: Variables) -> int:
    layers = 0
    while f"{stack}/layer_{layers}/ffn/linear_0/weight" in variables:
        layers += 1
    return layers


def _unusual(name: str, variables: Variables) -> UserError:
    return UserError(
        f"The model has {name}: {variables[name]}.",
        "Only models with post-norm layers that were converted from Marian's are supported.",
    )


def _tie(variables: Variables) -> str:
    names = (
        "encoder/embeddings_0/weight",
        "decoder/embeddings/weight",
        "decoder/projection/weight",
    )
    source, target, output = (variables[name] for name in names)
    same = source.shape == target.shape and np.array_equal(source, target)
    tied = np.array_equal(target, output)
    return {(True, True): "all", (True, False): "inputs", (False, True): "target"}.get(
        (same, tied), "none"
    )


def _parameter(own: str, variables: Variables) -> Tensor:
    """One of our parameters from CTranslate2's."""
    tables = {
        SOURCE: "encoder/embeddings_0/weight",
        TARGET: "decoder/embeddings/weight",
        OUTPUT: "decoder/projection/weight",
    }
    if own in tables:
        return with_padding(torch.from_numpy(variables[tables[own]]))
    if own == OUTPUT_BIAS:
        return bias_with_padding(torch.from_numpy(variables["decoder/projection/bias"]))
    stack, layer, block, part = own.split(".", 3)
    prefix = f"{stack}/layer_{layer}/{_BLOCKS[block]}"
    kind = "bias" if part.endswith("bias") else "weight"
    if part.startswith("norm."):
        names = ["layer_norm/" + ("beta" if kind == "bias" else "gamma")]
    elif part.startswith(("expand.", "attention.in_")):
        names = [f"linear_0/{kind}"]
        if block == "cross_attention":
            names.append(f"linear_1/{kind}")  # queries; keys and values
    else:
        names = [f"linear_{2 if block == 'cross_attention' else 1}/{kind}"]
    return torch.cat([torch.from_numpy(variables[f"{prefix}/{name}"]) for name in names])


def _tokenizers(folder: Path) -> tuple[Tokenizer, Tokenizer, list[str]]:
    """Of source and target. A package may lack the target's SentencePiece model.

    The pieces are in the vocabulary then, which Marian's tools write by frequency.
    """
    source, target = _vocabularies(folder)
    model = read_sentencepiece(folder / PIECES)
    content = to_tokenizers(model)
    cut, notes = content, []
    known = {piece.piece for piece in model.pieces}
    if sum(name not in known for name in target) > _OTHER_PIECES * len(target):
        cut = pieces_by_rank(content, target, UNKNOWN)
        notes = [
            "the package has the SentencePiece model of the source side alone; target text is cut"
            " by how frequent the vocabulary's pieces are, nearly as the model itself writes it"
        ]
    return padded_tokenizer(content, source), padded_tokenizer(cut, target), notes


def _vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    shared = folder / "model" / "shared_vocabulary.json"
    if shared.is_file():
        return _names(shared), _names(shared)
    source, target = (folder / "model" / f"{side}_vocabulary.json" for side in ("source", "target"))
    return _names(source), _names(target)


def _names(path: Path) -> list[str]:
    names = read_json(require_file(path))
    if not isinstance(names, list):
        raise UserError(f"{path} is not a list of tokens.", _REMEDY)
    return [str(name) for name in names]


def _languages(folder: Path) -> Languages:
    metadata = read_json(folder / METADATA) if (folder / METADATA).is_file() else {}
    source, target = (metadata.get(name) for name in ("from_code", "to_code"))
    return Languages(source and str(source), target and str(target))
