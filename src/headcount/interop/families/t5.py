"""T5 1.0 and 1.1, mT5, Flan-T5, MADLAD-400 (dense): RMS norm, relative positions, no biases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.interop.families.adapter import (
    Adapter,
    Checkpoint,
    Languages,
    Tokenizers,
    Written,
    activation_name,
    activation_of,
)
from headcount.interop.families.bart import check_token
from headcount.interop.families.tokenizers import (
    chosen_language,
    content_of,
    frame,
    load_tokenizer,
    make_tokenizer,
    write_fast_tokenizer,
)
from headcount.run import Run

MAX_POSITIONS = 1024
"""Relative positions have no limit; this bounds the memory per sentence."""

_LANGUAGE = re.compile(r"<2(\w+)>")
"""The target language of MADLAD-400, a token in front of the source."""

_BLOCKS = {"self_attention": (0, "SelfAttention"), "cross_attention": (1, "EncDecAttention")}
_STACKS = {"source_embedding": "encoder", "target_embedding": "decoder"}


class T5(Adapter):
    """`T5ForConditionalGeneration`.

    T5 1.0 scales the decoder's states before the output layer, by `width ** -0.5`: here the scale
    is part of the last norm's weight.
    """

    config_class, model_class = "T5Config", "T5ForConditionalGeneration"
    one_width = True

    def refuse(self, checkpoint: Checkpoint) -> None:
        """The start is the padding token by default."""
        config = checkpoint.config
        if getattr(config, "decoder_start_token_id", None) is None:
            config.decoder_start_token_id = config.pad_token_id
        for setting in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            check_token(checkpoint.name, config, setting)

    def model_settings(self, config: Any) -> dict[str, Any]:
        """All peculiarities of T5 are settings of our Transformer."""
        return {
            "encoder_layers": config.num_layers,
            "decoder_layers": config.num_decoder_layers,
            "heads": config.num_heads,
            "width": config.d_model,
            "head_width": config.d_kv,
            "ff_width": config.d_ff,
            "activation": activation_of(config.dense_act_fn),
            "gated": config.is_gated_act,
            "norm": "pre",
            "norm_kind": "rms",
            "norm_epsilon": config.layer_norm_epsilon,
            "biases": False,
            "scale_scores": False,
            "dropout": config.dropout_rate,
            "attention_dropout": config.dropout_rate,
            "activation_dropout": config.dropout_rate,
            "embedding_scale": False,
            "positions": "none",
            "relative_positions": "stack",
            "position_buckets": config.relative_attention_num_buckets,
            "position_distance": config.relative_attention_max_distance,
            "max_positions": MAX_POSITIONS,
        }

    def names(self, own: str, config: ModelConfig) -> tuple[str, ...]:
        """`encoder.block.0.layer.0.SelfAttention.q.weight` and its like."""
        match own.split("."):
            case [("source_embedding" | "target_embedding") as side, "table", "weight"]:
                return (f"{_STACKS[side]}.embed_tokens.weight",)
            case ["output_weight"]:
                return ("lm_head.weight",)
            case ["output_bias"]:
                return ("",)
            case [("encoder_norm" | "decoder_norm") as norm, kind]:
                return (f"{norm.removesuffix('_norm')}.final_layer_norm.{kind}",)
            case [("encoder_positions" | "decoder_positions") as positions, _, "table"]:
                attention = f"{positions.removesuffix('_positions')}.block.0.layer.0.SelfAttention"
                return (f"{attention}.relative_attention_bias.weight",)
            case [stack, layer, "feed_forward", "norm", kind]:
                return (f"{stack}.block.{layer}.layer.{_last(stack)}.layer_norm.{kind}",)
            case [stack, layer, "feed_forward", part, kind]:
                expand = "wi_0" if config.gated else "wi"
                name = {"expand": expand, "multiply": "wi_1", "contract": "wo"}[part]
                network = f"{stack}.block.{layer}.layer.{_last(stack)}.DenseReluDense"
                return (f"{network}.{name}.{kind}",)
            case [stack, layer, block, "attention", name]:
                number, attention = _BLOCKS[block]
                parts = "qkv" if name.startswith("in_") else "o"
                prefix = f"{stack}.block.{layer}.layer.{number}.{attention}"
                return tuple(f"{prefix}.{part}.weight" for part in parts)
            case [stack, layer, block, "norm", kind]:
                return (f"{stack}.block.{layer}.layer.{_BLOCKS[block][0]}.layer_norm.{kind}",)
        raise ValueError(f"no such parameter: {own}")

    def join(self, own: str, parts: list[Tensor], theirs: Any) -> Tensor:
        """The scale of the output goes into the last norm."""
        joined = super().join(own, parts, theirs)
        if own == "decoder_norm.weight" and getattr(theirs, "scale_decoder_outputs", False):
            joined = joined * float(theirs.d_model**-0.5)
        return joined

    def split(self, own: str, tensor: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
        """The inverse of `join`: a T5 whose matrices are all one scales its output."""
        if own == "decoder_norm.weight" and self.scales(config):
            return (tensor / config.width**-0.5,)
        return super().split(own, tensor, config)

    def scales(self, config: ModelConfig) -> bool:
        """Whether a model of this configuration is written as one that scales its output."""
        return config.tie == "all"

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """One tokeniser for both sides; a task or a language is text before the sentence."""
        theirs = load_tokenizer(checkpoint)
        content, config = content_of(checkpoint, theirs), checkpoint.config
        before, after = frame(theirs)
        prefix = languages.prefix
        named = [_LANGUAGE.fullmatch(token) for token in theirs.get_vocab()]
        codes = [match[1] for match in named if match]
        if codes and not prefix:
            target = chosen_language(checkpoint.name, codes, languages.target, "target")
            prefix = f"<2{target}> "
        start = config.decoder_start_token_id
        task = [*before, *_prefix_tokens(theirs, prefix)]
        source = make_tokenizer(content, theirs, checkpoint, task, after, start)
        written = make_tokenizer(content, theirs, checkpoint, before, after, start)
        pair = languages.source or "source", languages.target or "target"
        return Tokenizers(source, written, pair)

    def prepare(self, theirs: Any, config: ModelConfig) -> None:
        """`transformers` ties the output layer of every new T5."""
        if config.tie != "all":
            theirs.lm_head.weight = nn.Parameter(torch.empty_like(theirs.shared.weight))

    def settings(self, run: Run) -> Written:
        """The arguments of `T5Config`."""
        config, target = run.config.model, run.target_tokenizer
        positions = config.positions, config.relative_positions
        if positions != ("none", "stack") or config.norm_kind != "rms" or config.biases:
            raise UserError(
                f"{run.folder} has other positions, norms or biases than T5.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        activation = activation_name(config)
        if config.gated:  # there "gated-gelu" means the approximation
            activation = "gated-gelu" if activation == "gelu_new" else f"gated-{activation}"
        settings = {
            "vocab_size": run.source_tokenizer.size,
            "d_model": config.width,
            "d_kv": config.head_width_at("enc"),
            "d_ff": config.ff_width,
            "num_layers": config.encoder_layers,
            "num_decoder_layers": config.decoder_layers,
            "num_heads": config.heads,
            "relative_attention_num_buckets": config.position_buckets,
            "relative_attention_max_distance": config.position_distance,
            "dropout_rate": config.dropout,
            "layer_norm_epsilon": config.norm_epsilon,
            "feed_forward_proj": activation,
            "pad_token_id": target.pad,
            "eos_token_id": target.eos,
            "decoder_start_token_id": target.start,
            "tie_word_embeddings": self.scales(config),
        }
        return Written(settings, [])

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """A fast tokeniser."""
        return write_fast_tokenizer(run, folder)


class MT5(T5):
    """`MT5ForConditionalGeneration`, which never scales its output."""

    config_class, model_class = "MT5Config", "MT5ForConditionalGeneration"

    def scales(self, config: ModelConfig) -> bool:
        """Never."""
        return False


def _last(stack: str) -> int:
    """The number of the feed-forward block in a layer."""
    return 1 if stack == "encoder" else 2


def _prefix_tokens(theirs: Any, prefix: str) -> list[int]:
    """The tokens of a text in front of a sentence."""
    if not prefix:
        return []
    word = "a"
    alone = list(theirs(word, add_special_tokens=False).input_ids)
    whole = list(theirs(prefix + word, add_special_tokens=False).input_ids)
    if whole[-len(alone) :] != alone:
        raise UserError(
            f"The prefix {prefix!r} merges with the word after it.", "End it with a space."
        )
    return whole[: -len(alone)]
