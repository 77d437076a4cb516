"""BART, mBART and mBART-50, and the lineage that MarianMT and M2M100 share with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

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
from headcount.interop.families.tokenizers import (
    content_of,
    frame,
    framed_tokenizers,
    language_codes,
    load_tokenizer,
    make_tokenizer,
    write_fast_tokenizer,
)
from headcount.run import Run

FIRST_POSITION = 2
"""Of learned positions: fairseq keeps two numbers for padding, which nothing uses."""

_STACKS = {"source_embedding": "encoder", "target_embedding": "decoder"}
_ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
_NETWORK = {"expand": "fc1", "contract": "fc2", "norm": "final_layer_norm"}


class BartLike(Adapter):
    """Models of `transformers` that descend from fairseq's encoder-decoder."""

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Refuse numbers of tokens and heads that no model can have."""
        name, config = checkpoint.name, checkpoint.config
        for setting in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            check_token(name, config, setting)
        for setting in ("encoder_attention_heads", "decoder_attention_heads"):
            if getattr(config, setting) < 1:
                raise UserError(
                    f"{name} has {setting} {getattr(config, setting)}.", "Fix its config.json."
                )

    def model_settings(self, config: Any) -> dict[str, Any]:
        """Sizes, activation and dropout; the subclass adds norms and positions."""
        heads, decoder_heads = config.encoder_attention_heads, config.decoder_attention_heads
        width, decoder_width = config.encoder_ffn_dim, config.decoder_ffn_dim
        return {
            "encoder_layers": config.encoder_layers,
            "decoder_layers": config.decoder_layers,
            "heads": heads,
            "decoder_heads": None if decoder_heads == heads else decoder_heads,
            "width": config.d_model,
            "ff_width": width,
            "decoder_ff_width": None if decoder_width == width else decoder_width,
            "activation": activation_of(config.activation_function),
            "dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "activation_dropout": config.activation_dropout,
            "embedding_scale": config.scale_embedding,
            "max_positions": config.max_position_embeddings,
        }

    def names(self, own: str, config: ModelConfig) -> tuple[str, ...]:
        """`model.encoder.layers.0.self_attn.q_proj.weight` and its like."""
        match own.split("."):
            case [("source_embedding" | "target_embedding") as side, "table", "weight"]:
                return (f"model.{_STACKS[side]}.embed_tokens.weight",)
            case [("source_embedding" | "target_embedding") as side, "positions"]:
                return (f"model.{_STACKS[side]}.embed_positions.weight",)
            case [("source_embedding" | "target_embedding") as side, "norm", kind]:
                return (f"model.{_STACKS[side]}.layernorm_embedding.{kind}",)
            case ["output_weight"]:
                return ("lm_head.weight",)
            case ["output_bias"]:
                return ("final_logits_bias",)
            case [("encoder_norm" | "decoder_norm") as norm, kind]:
                return (f"model.{norm.removesuffix('_norm')}.layer_norm.{kind}",)
            case [stack, layer, block, "attention", name]:
                which, _, kind = name.partition("_")
                parts = "qkv" if which == "in" else ["out"]
                attention = f"model.{stack}.layers.{layer}.{_ATTENTIONS[block]}"
                return tuple(f"{attention}.{part}_proj.{kind}" for part in parts)
            case [stack, layer, "feed_forward", part, kind]:
                return (f"model.{stack}.layers.{layer}.{_NETWORK[part]}.{kind}",)
            case [stack, layer, block, "norm", kind]:
                return (f"model.{stack}.layers.{layer}.{_ATTENTIONS[block]}_layer_norm.{kind}",)
        raise ValueError(f"no such parameter: {own}")

    def join(self, own: str, parts: list[Tensor], theirs: Any) -> Tensor:
        """The logits' bias is a row there, and learned positions begin at number 2."""
        joined = super().join(own, parts, theirs)
        if own.endswith(".positions"):
            return joined[FIRST_POSITION:]
        return joined.reshape(-1) if own == "output_bias" else joined

    def split(self, own: str, tensor: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
        """The inverse of `join`."""
        if own.endswith(".positions"):
            return (torch.cat([tensor.new_zeros(FIRST_POSITION, config.width), tensor]),)
        return (tensor[None],) if own == "output_bias" else super().split(own, tensor, config)

    def settings(self, run: Run) -> Written:
        """The arguments of the configuration class, of what all of the lineage have."""
        config, target = run.config.model, run.target_tokenizer
        inner = {
            site: config.head_width_at(site) * config.heads_at(site) for site in ("enc", "dec")
        }
        if set(inner.values()) != {config.width}:
            raise UserError(
                f"{run.folder} has heads of a width of their own, which this family does not have.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        if run.source_tokenizer.pad != target.pad:
            raise UserError(
                f"{run.folder} has other special tokens on each side; this family has one set.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        return Written(
            {
                "vocab_size": run.source_tokenizer.size,
                "max_position_embeddings": config.max_positions,
                "encoder_layers": config.encoder_layers,
                "decoder_layers": config.decoder_layers,
                "encoder_attention_heads": config.heads_at("enc"),
                "decoder_attention_heads": config.heads_at("dec"),
                "encoder_ffn_dim": config.ff_width_at("enc_ff"),
                "decoder_ffn_dim": config.ff_width_at("dec_ff"),
                "d_model": config.width,
                "activation_function": activation_name(config),
                "dropout": config.dropout,
                "attention_dropout": config.attention_dropout,
                "activation_dropout": config.activation_dropout,
                "scale_embedding": config.embedding_scale,
                "pad_token_id": target.pad,
                "eos_token_id": target.eos,
                "decoder_start_token_id": target.start,
                "forced_eos_token_id": target.eos if run.config.search.force_end else None,
                "tie_word_embeddings": config.tie in ("target", "all"),
            },
            [],
        )


def check_token(name: str, config: Any, setting: str) -> None:
    """Make sure that a special token is one number of the vocabulary."""
    token = getattr(config, setting)
    if isinstance(token, list):
        if len(token) != 1:
            raise UserError(f"{name} has several ends of sentence.", "Only one is supported.")
        token = token[0]
        setattr(config, setting, token)
    size = min(config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    if token is None:
        raise UserError(f"{name} does not say its {setting}.", "Fix its config.json.")
    if not 0 <= token < size:
        raise UserError(
            f"{name} has {setting} {token}, which is not in its vocabulary of {size}.",
            "Fix its config.json.",
        )


class Bart(BartLike):
    """`BartForConditionalGeneration`: post-norm."""

    config_class, model_class = "BartConfig", "BartForConditionalGeneration"
    norm = "post"

    def model_settings(self, config: Any) -> dict[str, Any]:
        """Learned positions and normed embeddings."""
        own = {"norm": self.norm, "positions": "learned", "embedding_norm": True}
        return {**super().model_settings(config), **own}

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """One tokeniser for both sides, which puts `<s>` and `</s>` around every sentence."""
        theirs = load_tokenizer(checkpoint)
        content, start = content_of(checkpoint, theirs), checkpoint.config.decoder_start_token_id
        side = make_tokenizer(content, theirs, checkpoint, *frame(theirs), start=start)
        pair = languages.source or "source", languages.target or "target"
        return Tokenizers(side, side, pair)

    def settings(self, run: Run) -> Written:
        """The configuration; nothing is lost."""
        config = run.config.model
        if config.positions != "learned" or not config.embedding_norm or config.norm != self.norm:
            raise UserError(
                f"{run.folder} has other positions or norms than this family.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        return super().settings(run)

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """A fast tokeniser."""
        return write_fast_tokenizer(run, folder)


class MBart(Bart):
    """`MBartForConditionalGeneration`: pre-norm, and a language token."""

    config_class, model_class = "MBartConfig", "MBartForConditionalGeneration"
    norm = "pre"

    def refuse(self, checkpoint: Checkpoint) -> None:
        """The start may be missing: mBART starts with the target language."""
        config = checkpoint.config
        if config.decoder_start_token_id is None:
            check_token(checkpoint.name, config, "eos_token_id")
            config.decoder_start_token_id = config.eos_token_id
        super().refuse(checkpoint)

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """mBART writes the language after the sentence, mBART-50 before it."""
        theirs = load_tokenizer(checkpoint)
        codes = language_codes(theirs)
        if not codes:
            return super().tokenizers(checkpoint, languages)
        theirs.src_lang = next(iter(codes))
        after = not frame(theirs)[0]
        return framed_tokenizers(checkpoint, theirs, languages, codes, starts_with_language=after)
