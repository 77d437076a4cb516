"""MarianMT: post-norm, sinusoidal positions, SentencePiece models of two languages (OPUS-MT)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.interop.families.adapter import Checkpoint, Languages, Tokenizers, Written
from headcount.interop.families.bart_like import BartLike
from headcount.interop.marian_tokenizers import read_languages, read_tokenizers, write_tokenizers
from headcount.interop.plain_tokenizers import write_plain_tokenizers
from headcount.run import Run

PLAIN = (
    "position_base",
    "position_scale",
    "shortest_wavelength",
    "position_offset",
    "positions",
    "relative_positions",
    "embedding_norm",
    "norm_kind",
    "biases",
    "scale_scores",
    "gated",
    "first_tokens",
)
"""Settings that are fixed in MarianMT."""


class Marian(BartLike):
    """`MarianMTModel`."""

    config_class, model_class = "MarianConfig", "MarianMTModel"

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Refuse settings that the configuration allows but transformers' own model ignores."""
        super().refuse(checkpoint)
        for setting in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
            if getattr(checkpoint.config, setting, False):
                raise UserError(
                    f"{checkpoint.name} has {setting}, which MarianMT models do not have.",
                    "Models of that kind cannot be imported.",
                )

    def model_settings(self, config: Any) -> dict[str, Any]:
        """Always post-norm in `transformers`."""
        return {**super().model_settings(config), "norm": "post"}

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """`source.spm`, `target.spm`, `vocab.json`."""
        pair = read_languages(checkpoint.find, checkpoint.name) or ("", "")
        source, target = languages.source or pair[0], languages.target or pair[1]
        if not (source and target):
            raise UserError(
                f"{checkpoint.name} does not say its languages.",
                "Give them, as in --source-language en --target-language fr.",
            )
        return Tokenizers(*read_tokenizers(checkpoint.find, checkpoint.config), (source, target))

    def settings(self, run: Run) -> Written:
        """MarianMT has two vocabularies; positions and norm have to be its own."""
        config = run.config.model
        own = [
            name
            for name in PLAIN
            if getattr(config, name) != ModelConfig.model_fields[name].default
        ]
        if own:
            raise UserError(
                f"{run.folder} has what MarianMT does not (model.{', model.'.join(own)}).",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        if config.norm != "post":
            raise UserError(
                f"{run.folder} is a pre-norm model; MarianMT in transformers is always post-norm.",
                "Export it to ctranslate2 or onnx, or train with model.norm=post.",
            )
        if run.source_tokenizer.eos != run.target_tokenizer.eos:
            raise UserError(
                f"{run.folder} has other special tokens on each side; MarianMT has one set.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        settings, notes = super().settings(run)
        settings["decoder_vocab_size"] = run.target_tokenizer.size
        settings["share_encoder_decoder_embeddings"] = config.tie in ("inputs", "all")
        return Written(settings, notes)

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """`MarianTokenizer`'s files, where the run has SentencePiece models."""
        if write_tokenizers(run, folder):
            return []
        write_plain_tokenizers(run, folder)
        return [
            "this run's tokenisers are not SentencePiece models; they are written for the"
            " tokenizers library"
        ]
