"""Fast tokenisers of `transformers` as a run's: the same JSON, the same ids, the same offsets."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import read_json
from headcount.interop.families.adapter import Checkpoint, Languages, Tokenizers
from headcount.interop.plain_tokenizers import framed_content, write_json_file
from headcount.run import Run

FILE, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_LANGUAGE = re.compile(r"[a-z]{2,3}_[A-Za-z]{2,4}")
_PROBES = (
    "This is a test, isn't it? Yes: 1,234.5 «ça va» (œuvre) – done…",
    "  Two  spaces,\tthe ﬁrst ligature, 日本語 and Ελληνικά. ",
)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's tokeniser as `transformers` loads it; no code of the model is run."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(checkpoint.name, trust_remote_code=False)
    except Exception as error:  # the libraries raise all kinds of exceptions
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else "damaged"
        raise UserError(
            f"The tokeniser of {checkpoint.name} cannot be read ({reason}).",
            f"Fetch the model's tokeniser as well, best its {FILE}.",
        ) from error


def content_of(checkpoint: Checkpoint, theirs: Any) -> dict[str, Any]:
    """The JSON of a fast tokeniser: the folder's own where it cuts text as `transformers` does."""
    from tokenizers import Tokenizer as Core

    built: dict[str, Any] = json.loads(theirs.backend_tokenizer.to_str())
    path = checkpoint.find(FILE)
    if path is not None:
        stored = {**read_json(path), "truncation": None, "padding": None}
        try:
            core = Core.from_str(json.dumps(stored))
            same = all(
                core.encode(probe, add_special_tokens=False).ids
                == theirs(probe, add_special_tokens=False).input_ids
                for probe in _PROBES
            )
        except Exception as error:  # the library raises bare Exceptions
            raise UserError(f"{path} is not a tokeniser ({error}).", "Fetch it again.") from error
        if same:
            built = stored
    return {**built, "truncation": None, "padding": None}


def frame(theirs: Any, target: bool = False) -> tuple[list[int], list[int]]:
    """The tokens that stand before and after every sentence."""
    text = {"text_target": "a"} if target else {"text": "a"}
    whole = list(theirs(**text).input_ids)
    inside = list(theirs(**text, add_special_tokens=False).input_ids)
    for first in range(len(whole) - len(inside) + 1):
        if whole[first : first + len(inside)] == inside:
            return whole[:first], whole[first + len(inside) :]
    raise UserError(
        "The tokeniser changes text when it adds tokens around it.", "It cannot be imported."
    )


def language_codes(theirs: Any) -> dict[str, int]:
    """The languages of a tokeniser by their codes, such as `eng_Latn` or `en_XX`."""
    added = theirs.get_added_vocab()
    return {token: number for token, number in added.items() if _LANGUAGE.fullmatch(token)}


def chosen_language(name: str, codes: Iterable[str], language: str | None, side: str) -> str:
    """A language that the user named, which the model has to know."""
    known = sorted(codes)
    if language is None:
        raise UserError(
            f"{name} knows {len(known)} languages.",
            f"Say which with --{side}-language, for example {known[0]}.",
        )
    if language not in known:
        near = difflib.get_close_matches(language, known, n=3, cutoff=0.2)
        near = [code for code in known if code.startswith(language[:2])][:3] or near or known[:3]
        raise UserError(
            f"{name} does not know the language '{language}'.", f"Similar: {', '.join(near)}."
        )
    return language


def framed_tokenizers(
    checkpoint: Checkpoint,
    theirs: Any,
    languages: Languages,
    codes: dict[str, int],
    starts_with_language: bool = False,
) -> Tokenizers:
    """Both sides of a tokeniser with language codes.

    Outputs begin with the target's code: as the token after the start, or as the start itself
    (`starts_with_language`, mBART).
    """
    config = checkpoint.config
    source = chosen_language(checkpoint.name, codes, languages.source, "source")
    target = chosen_language(checkpoint.name, codes, languages.target, "target")
    theirs.src_lang, theirs.tgt_lang = source, target
    content = content_of(checkpoint, theirs)
    start = codes[target] if starts_with_language else config.decoder_start_token_id
    first_tokens = () if starts_with_language else (codes[target],)
    return Tokenizers(
        make_tokenizer(content, theirs, checkpoint, *frame(theirs), start=start),
        make_tokenizer(content, theirs, checkpoint, first_tokens, [config.eos_token_id], start),
        (source, target),
        first_tokens,
    )


def make_tokenizer(
    content: dict[str, Any],
    theirs: Any,
    checkpoint: Checkpoint,
    before: Iterable[int],
    after: list[int],
    start: int,
) -> Tokenizer:
    """One side: the last token of every sentence is its end."""
    if not after:
        raise UserError(
            f"The tokeniser of {checkpoint.name} has no end of a sentence.",
            "It cannot be imported.",
        )
    largest = max(theirs.get_vocab().values())
    size = checkpoint.config.vocab_size
    if largest >= size:
        raise UserError(
            f"The tokeniser of {checkpoint.name} has {largest + 1} tokens, but the model has only"
            f" {size}.",
            "The files do not belong together; fetch them again.",
        )
    return Tokenizer(
        content,
        pad=checkpoint.config.pad_token_id,
        unk=theirs.unk_token_id,
        start=start,
        eos=after[-1],
        size=size,
        before=tuple(before),
        after=tuple(after[:-1]),
    )


def write_fast_tokenizer(run: Run, folder: Path) -> list[str]:
    """The source's tokeniser as `PreTrainedTokenizerFast` reads it, with its frame."""
    source, target = run.source_tokenizer, run.target_tokenizer
    names = source.tokens()
    write_json_file(folder / FILE, framed_content(source, end=True))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": names[source.unk],
        "eos_token": names[target.eos],
        "pad_token": names[source.pad],
        "model_max_length": run.config.model.max_positions,
    }
    write_json_file(folder / SETTINGS, settings)
    return []
