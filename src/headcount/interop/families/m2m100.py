"""M2M100 and NLLB-200 (dense): pre-norm, sinusoidal positions from 2 on, language tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import read_json
from headcount.interop.families.adapter import Checkpoint, Languages, Tokenizers, Written
from headcount.interop.families.bart import BartLike
from headcount.interop.families.tokenizers import (
    chosen_language,
    framed_tokenizers,
    language_codes,
    load_tokenizer,
    write_fast_tokenizer,
)
from headcount.interop.plain_tokenizers import write_json_file
from headcount.interop.sentencepiece_model import (
    read_sentencepiece,
    to_sentencepiece,
    to_tokenizers,
)
from headcount.run import Run

SENTENCEPIECE, VOCABULARY = "sentencepiece.bpe.model", "vocab.json"


class M2M100(BartLike):
    """`M2M100ForConditionalGeneration`, which NLLB-200's dense models are too."""

    config_class, model_class = "M2M100Config", "M2M100ForConditionalGeneration"

    def model_settings(self, config: Any) -> dict[str, Any]:
        """Wavelengths reach 10000 * 2 pi exactly, where Vaswani et al.'s stop one step before."""
        half = config.d_model // 2
        return {
            **super().model_settings(config),
            "norm": "pre",
            "position_offset": config.pad_token_id + 1,
            "position_base": 10000.0 ** (half / max(1, half - 1)),
        }

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """NLLB has a fast tokeniser; M2M100 has SentencePiece and numbers of its own."""
        theirs = load_tokenizer(checkpoint)
        if not theirs.is_fast:
            return self._with_vocabulary(checkpoint, theirs, languages)
        codes = language_codes(theirs)
        return framed_tokenizers(checkpoint, theirs, languages, codes)

    def _with_vocabulary(
        self, checkpoint: Checkpoint, theirs: Any, languages: Languages
    ) -> Tokenizers:
        """M2M100: `sentencepiece.bpe.model` cuts, `vocab.json` numbers, languages come after."""
        codes: dict[str, int] = theirs.lang_code_to_id
        source = chosen_language(checkpoint.name, codes, languages.source, "source")
        target = chosen_language(checkpoint.name, codes, languages.target, "target")
        path, numbered = checkpoint.find(SENTENCEPIECE), checkpoint.find(VOCABULARY)
        if path is None or numbered is None:
            raise UserError(
                f"{checkpoint.name} has no {SENTENCEPIECE} with a {VOCABULARY}.",
                "Fetch the model's tokeniser as well.",
            )
        numbers = {**read_json(numbered), **theirs.lang_token_to_id}
        config = checkpoint.config
        vocabulary = [""] * config.vocab_size
        for token, number in numbers.items():
            if type(number) is not int or not 0 <= number < len(vocabulary):
                raise UserError(
                    f"{VOCABULARY} has a token with the number {number!r}, but the model has only"
                    f" {len(vocabulary)}.",
                    "The files do not belong together; fetch them again.",
                )
            vocabulary[number] = token
        content = to_tokenizers(read_sentencepiece(path), list(theirs.lang_token_to_id))
        for code in content["added_tokens"]:
            code["special"] = True  # not part of a translation's text
        special = {"pad": config.pad_token_id, "unk": numbers[theirs.unk_token]}
        special |= {"start": config.decoder_start_token_id, "eos": config.eos_token_id}
        first, second = (
            Tokenizer(content, **special, vocabulary=vocabulary, before=(codes[language],))
            for language in (source, target)
        )
        return Tokenizers(first, second, (source, target), (codes[target],))

    def settings(self, run: Run) -> Written:
        """The configuration; positions other than M2M100's cannot be expressed."""
        config = run.config.model
        half = config.width // 2
        expected = (run.target_tokenizer.pad + 1, 10000.0 ** (half / max(1, half - 1)))
        if (config.position_offset, config.position_base) != expected or config.norm != "pre":
            raise UserError(
                f"{run.folder} has other positions or norms than M2M100.",
                "Try --to ctranslate2 or --to onnx, or use the run as it is.",
            )
        return super().settings(run)

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """A fast tokeniser, or the files of `M2M100Tokenizer`."""
        source, target = run.source_tokenizer, run.target_tokenizer
        if source.vocabulary is None:
            return write_fast_tokenizer(run, folder)
        (folder / SENTENCEPIECE).write_bytes(to_sentencepiece(source.content))
        codes = {token["content"] for token in source.content["added_tokens"]}
        names = source.tokens()
        numbers = {token: i for i, token in enumerate(names) if token and token not in codes}
        write_json_file(folder / VOCABULARY, numbers)
        settings = {
            "tokenizer_class": "M2M100Tokenizer",
            "src_lang": run.config.data.source,
            "tgt_lang": run.config.data.target,
            "unk_token": names[source.unk],
            "eos_token": names[target.eos],
            "pad_token": names[source.pad],
            "model_max_length": run.config.model.max_positions,
        }
        write_json_file(folder / "tokenizer_config.json", settings)
        return []
