"""A run's tokenisers for other engines: as the `tokenizers` library reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headcount.data.tokenizer import Tokenizer
from headcount.run import Run

SOURCE_TOKENIZER, TARGET_TOKENIZER = "source_tokenizer.json", "target_tokenizer.json"
SOURCE_VOCABULARY, TARGET_VOCABULARY = "source_vocabulary.json", "target_vocabulary.json"
IDS = "ids.json"


def write_plain_tokenizers(run: Run, folder: Path, source_end: bool = False) -> None:
    """Both tokenisers; the pieces that they give are the tokens of the vocabularies.

    What stands before and after every sentence is among them, but not its end, unless the engine
    cannot add that of sources itself (`source_end`).
    """
    source, target = run.source_tokenizer, run.target_tokenizer
    write_json_file(folder / SOURCE_TOKENIZER, framed_content(source, end=source_end))
    write_json_file(folder / TARGET_TOKENIZER, framed_content(target, end=False))


def framed_content(tokenizer: Tokenizer, end: bool) -> dict[str, Any]:
    """A tokeniser's JSON that also writes what stands around a sentence, with or without EOS."""
    content, names = tokenizer.content, tokenizer.tokens()
    own = content.get("post_processor")
    plain = [own] if own and own["type"] == "ByteLevel" else []  # it only trims offsets
    after = [*tokenizer.after, *([tokenizer.eos] if end else [])]
    if not (tokenizer.before or after):
        return {**content, "post_processor": plain[0] if plain else None}
    around = [
        [{"SpecialToken": {"id": names[i], "type_id": 0}} for i in side]
        for side in (tokenizer.before, after)
    ]
    framing = {
        "type": "TemplateProcessing",
        "single": [*around[0], {"Sequence": {"id": "A", "type_id": 0}}, *around[1]],
        "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B")],
        "special_tokens": {
            names[i]: {"id": names[i], "ids": [i], "tokens": [names[i]]}
            for i in dict.fromkeys([*tokenizer.before, *after])
        },
    }
    whole = {"type": "Sequence", "processors": [*plain, framing]} if plain else framing
    return {**content, "post_processor": whole}


def write_vocabularies(run: Run, folder: Path) -> None:
    """The tokens of both sides by their numbers, and the numbers of the special ones."""
    source, target = token_names(run)
    write_json_file(folder / SOURCE_VOCABULARY, source)
    write_json_file(folder / TARGET_VOCABULARY, target)
    ids = {}
    for side, tokenizer in (("source", run.source_tokenizer), ("target", run.target_tokenizer)):
        ids[side] = {name: getattr(tokenizer, name) for name in ("pad", "unk", "start", "eos")}
    write_json_file(folder / IDS, ids)


def token_names(run: Run) -> tuple[list[str], list[str]]:
    """Both vocabularies; an id that has no text is called by its number."""
    sides = []
    for tokenizer in (run.source_tokenizer, run.target_tokenizer):
        tokens = tokenizer.tokens()
        sides.append([token or f"<unused {number}>" for number, token in enumerate(tokens)])
    return sides[0], sides[1]


def write_json_file(path: Path, value: Any) -> None:
    """One of the small files of an export."""
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
