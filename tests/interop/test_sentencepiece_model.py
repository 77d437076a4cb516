"""SentencePiece itself is the reference."""

from __future__ import annotations

import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Core

from headcount.errors import UserError
from headcount.interop.sentencepiece_model import (
    _check_charsmap,
    read_sentencepiece,
    to_sentencepiece,
    to_tokenizers,
)

sentencepiece = pytest.importorskip("sentencepiece", reason="needs headcount[marian]")

SETTINGS: dict[str, dict[str, Any]] = {
    "unigram": {},
    "bpe": {"model_type": "bpe"},
    "bytes": {"byte_fallback": True, "vocab_size": 500, "character_coverage": 0.98},
    "no normaliser": {"normalization_rule_name": "identity"},
    "spaces kept": {"remove_extra_whitespaces": False},
    "no prefix": {"add_dummy_prefix": False},
    "own symbols": {"user_defined_symbols": ["<sep>", "dog"]},
}


@pytest.fixture(scope="module", params=SETTINGS, ids=str)
def pair(
    request: pytest.FixtureRequest,
    train_sentencepiece: Callable[..., bytes],
    french: list[str],
    english: list[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, dict[str, Any]]:
    """A SentencePiece model and the content that was made of it."""
    model = train_sentencepiece([*french[:250], *english[:250]], **SETTINGS[request.param])
    path = tmp_path_factory.mktemp("spm") / "model.spm"
    path.write_bytes(model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor, to_tokenizers(read_sentencepiece(path))


@pytest.fixture(scope="module")
def lines(french: list[str], english: list[str]) -> list[str]:
    """Sentences, and what is hard about text."""
    rng = random.Random(1)
    hard = ["", " ", "  two  spaces ", "tab\there", "</s> <s> <unk> <pad>", "a▁b ▁c", "½ ﬁn … ①"]
    hard += ["漢字 🙂🙂 xyz", "<sep>dog<sep> dogs", "no\u00a0break\u3000wide\u200bzero"]
    hard += [unicodedata.normalize("NFD", line) for line in french[:50]]
    letters = [*"abcé ,.'", "É", "ß", "漢", "🙂", "\u0301", "x"]
    hard += ["".join(rng.choices(letters, k=12)) for _ in range(200)]
    return [*french[:400], *english[:400], *hard]


def test_cuts_like_sentencepiece(pair: tuple[Any, dict[str, Any]], lines: list[str]) -> None:
    processor, content = pair
    core = Core.from_str(json.dumps(content))
    different = [line for line in lines if core.encode(line).ids != processor.encode(line)]
    assert different == []


def test_there_and_back(pair: tuple[Any, dict[str, Any]], lines: list[str]) -> None:
    processor, content = pair
    back = sentencepiece.SentencePieceProcessor(model_proto=to_sentencepiece(content))
    assert back.get_piece_size() == processor.get_piece_size()
    assert [line for line in lines if back.encode(line) != processor.encode(line)] == []
    assert back.unk_id() == processor.unk_id()


def test_decodes_like_sentencepiece(pair: tuple[Any, dict[str, Any]], lines: list[str]) -> None:
    processor, content = pair
    core = Core.from_str(json.dumps(content))
    for line in lines:
        ids = processor.encode(line)
        if processor.unk_id() not in ids:
            assert core.decoder.decode(core.encode(line).tokens).strip() == (
                processor.decode(ids).strip()
            )


def test_refuses_what_it_cannot_do(
    train_sentencepiece: Callable[..., bytes], english: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "words.spm"
    path.write_bytes(train_sentencepiece(english[:200], model_type="word"))
    with pytest.raises(UserError, match="words or characters"):
        to_tokenizers(read_sentencepiece(path))
    path.write_bytes(b"\xff\xfe no model")
    with pytest.raises(UserError, match="not a SentencePiece model"):
        read_sentencepiece(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="without pieces"):
        read_sentencepiece(path)


@pytest.mark.parametrize("damaged", [b"\xff\xff\0\0abc", b"\x04\0\0\0abcd\x9c"])
def test_a_damaged_table_of_characters_is_refused(damaged: bytes) -> None:
    """The library that reads it later would end the process instead."""
    _check_charsmap(b"\x04\0\0\0abcdtext")
    with pytest.raises(UserError, match="table of characters is damaged"):
        _check_charsmap(damaged)
