"""MarianMT: post-norm, sinusoidal positions, SentencePiece models of two languages (OPUS-MT).

The ids are those of `transformers.MarianTokenizer`, but for its special tokens: the text "</s>"
gives an end of sentence there and four characters here. Like it, this does not normalise
punctuation; `sacremoses` does so for those who call `MarianTokenizer.normalize` themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headcount.config import ModelConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import read_json
from headcount.interop.families.adapter import Checkpoint, Languages, Tokenizers, Written
from headcount.interop.families.bart import BartLike
from headcount.interop.plain_tokenizers import write_plain_tokenizers
from headcount.interop.sentencepiece_model import (
    read_sentencepiece,
    to_sentencepiece,
    to_tokenizers,
)
from headcount.run import Run

SOURCE_SPM, TARGET_SPM = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
SETTINGS = "tokenizer_config.json"

Find = Callable[[str], Path | None]


def read_tokenizers(find: Find, marian: Any) -> tuple[Tokenizer, Tokenizer]:
    """Both tokenisers of a MarianMT model.

    `find` gives the path of a file of the model by its name, or None; `marian` is its
    `MarianConfig`.
    """
    settings = _read_settings(find)
    source_vocabulary = _read_mapping(_need(find, VOCABULARY))
    target_vocabulary = source_vocabulary
    if settings.get("separate_vocabs"):
        target_vocabulary = _read_mapping(_need(find, TARGET_VOCABULARY))
    unknown = _text(settings.get("unk_token") or "<unk>")
    codes = [token for token in source_vocabulary if _is_language(token)]
    source = to_tokenizers(read_sentencepiece(_need(find, SOURCE_SPM)), codes)
    target = to_tokenizers(read_sentencepiece(_need(find, TARGET_SPM)))
    sizes = marian.vocab_size, marian.decoder_vocab_size or marian.vocab_size
    return (
        _tokenizer(source, source_vocabulary, sizes[0], unknown, marian),
        _tokenizer(target, target_vocabulary, sizes[1], unknown, marian),
    )


def read_languages(find: Find, name: str) -> tuple[str, str] | None:
    """Source and target language, as the tokenizer's settings or the model's name give them."""
    settings = _read_settings(find)
    pair = settings.get("source_lang"), settings.get("target_lang")
    if all(isinstance(language, str) and language for language in pair):
        return str(pair[0]), str(pair[1])
    parts = Path(name).name.split("-")  # opus-mt-en-fr, opus-mt-tc-big-en-fr
    if len(parts) >= 4 and parts[:2] == ["opus", "mt"]:
        return parts[-2], parts[-1]
    return None


def write_tokenizers(run: Run, folder: Path) -> bool:
    """Write the files of `MarianTokenizer`; False where the run's tokenisers have none.

    BPE that headcount has trained cuts punctuation off by rules that SentencePiece cannot express.
    """
    source, target = run.source_tokenizer, run.target_tokenizer
    if source.vocabulary is None or target.vocabulary is None:
        return False
    for tokenizer, name in ((source, SOURCE_SPM), (target, TARGET_SPM)):
        (folder / name).write_bytes(to_sentencepiece(tokenizer.content))
    separate = source.vocabulary != target.vocabulary
    _write(folder / VOCABULARY, _numbered(source))
    if separate:
        _write(folder / TARGET_VOCABULARY, _numbered(target))
    names = source.vocabulary
    _write(
        folder / SETTINGS,
        {
            "tokenizer_class": "MarianTokenizer",
            "source_lang": run.config.data.source,
            "target_lang": run.config.data.target,
            "separate_vocabs": separate,
            "unk_token": names[source.unk],
            "eos_token": names[source.eos],
            "pad_token": names[source.pad],
            "model_max_length": run.config.model.max_positions,
        },
    )
    return True


def _tokenizer(
    content: dict[str, Any], numbers: Mapping[str, int], size: int, unknown: str, marian: Any
) -> Tokenizer:
    vocabulary = [""] * size
    for token, number in numbers.items():
        if not (isinstance(number, int) and 0 <= number < size):
            raise UserError(
                f"{VOCABULARY} has a token with the number {number!r}, the model has {size}.",
                "The files do not belong together; fetch them again.",
            )
        vocabulary[number] = token
    if unknown not in numbers:
        raise UserError(f"{VOCABULARY} has no {unknown}.", "Fetch the model again.")
    return Tokenizer(
        content,
        pad=marian.pad_token_id,
        unk=numbers[unknown],
        start=marian.decoder_start_token_id,
        eos=marian.eos_token_id,
        vocabulary=vocabulary,
    )


def _numbered(tokenizer: Tokenizer) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokenizer.tokens()) if token}


def _read_settings(find: Find) -> dict[str, Any]:
    path = find(SETTINGS)
    return _read_mapping(path) if path else {}


def _read_mapping(path: Path) -> dict[str, Any]:
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no names and values.", "Fetch the model again.")
    return content


def _need(find: Find, name: str) -> Path:
    path = find(name)
    if path is None:
        raise UserError(
            f"The model has no {name}.",
            "A MarianMT model has source.spm, target.spm and vocab.json beside its weights.",
        )
    return path


def _is_language(token: str) -> bool:
    return token.startswith(">>") and token.endswith("<<")


def _text(token: Any) -> str:
    """A token of the settings, which may be a mapping with flags."""
    return str(token["content"] if isinstance(token, Mapping) else token)


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


PLAIN = (
    "position_base",
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
