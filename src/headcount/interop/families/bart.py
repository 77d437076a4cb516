"""BART, mBART and mBART-50: learned positions, normed embeddings, a forced first token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.interop.families.adapter import Checkpoint, Languages, Tokenizers, Written
from headcount.interop.families.bart_like import BartLike, check_token
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
