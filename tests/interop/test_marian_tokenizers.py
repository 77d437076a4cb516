"""`transformers.MarianTokenizer` is the reference."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.errors import UserError
from headcount.interop.families.marian import read_languages, read_tokenizers
from headcount.interop.importing import import_run
from headcount.run import Run


def finder(folder: Path) -> Callable[[str], Path | None]:
    """Files of a folder by name."""
    return lambda name: folder / name if (folder / name).exists() else None


@pytest.fixture(scope="module")
def theirs(transformers: Any, marian_folder: Path) -> Any:
    return transformers.MarianTokenizer.from_pretrained(marian_folder)


def test_same_ids_on_thousands_of_sentences(
    theirs: Any, marian_run: Run, english: list[str], french: list[str]
) -> None:
    """Also where a piece is not in the vocabulary, and where the other side's pieces occur."""
    lines = [*english, *french, *(f"{line} – “{line}” œß 漢字 {line}" for line in french[:300])]
    expected = [theirs(line).input_ids for line in lines]
    encode = marian_run.source_tokenizer.encode
    assert [[*encode(line), marian_run.source_tokenizer.eos] for line in lines] == expected
    unknown = marian_run.source_tokenizer.unk
    assert any(unknown in ids for ids in expected)
    assert len(lines) > 2500


def test_same_ids_of_targets(theirs: Any, marian_run: Run, french: list[str]) -> None:
    expected = theirs(text_target=french[:300]).input_ids
    assert [[*marian_run.target_tokenizer.encode(line), 0] for line in french[:300]] == expected


def test_language_codes_are_tokens(theirs: Any, marian_run: Run, english: list[str]) -> None:
    for line in english[:20]:
        expected = theirs(f">>fra<< {line}").input_ids[:-1]
        assert marian_run.source_tokenizer.encode(f">>fra<< {line}") == expected
    code = json.loads((marian_run.folder / "tokenizer.src.json").read_text())["vocabulary"]
    assert expected[0] == code.index(">>fra<<")


def test_text_never_gives_special_tokens(marian_run: Run) -> None:
    tokenizer = marian_run.source_tokenizer
    ids = tokenizer.encode("</s> <pad> <s> and </s>")
    assert not {tokenizer.pad, tokenizer.eos, tokenizer.start} & set(ids)


def test_decodes_alike(theirs: Any, marian_run: Run, french: list[str]) -> None:
    target = marian_run.target_tokenizer
    for line in french[:200]:
        ids = [*target.encode(line), target.eos, target.pad]
        assert target.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_offsets_point_into_the_original(marian_run: Run, english: list[str]) -> None:
    tokenizer = marian_run.source_tokenizer
    for line in [*english[:200], "  A   wide … gap ", "½ cup"]:
        pieces = tokenizer.pieces(line)
        assert [piece.id for piece in pieces] == tokenizer.encode(line)
        covered = [range(piece.start, piece.end) for piece in pieces]
        places = [place for span in covered for place in span]
        assert places == sorted(set(places))  # in order, and none twice
        assert {i for i, c in enumerate(line) if not c.isspace()} == set(places)
    for piece in tokenizer.pieces("The cat, the dog."):
        assert piece.text.replace("▁", "") == "The cat, the dog."[piece.start : piece.end]


def test_separate_vocabularies(
    transformers: Any, make_checkpoint: Any, tmp_path: Path, english: list[str], french: list[str]
) -> None:
    folder = make_checkpoint(tmp_path / "model", separate=True)
    run = import_run(folder, tmp_path / "run").run
    theirs = transformers.MarianTokenizer.from_pretrained(folder)
    for source, target in zip(english[:100], french[:100], strict=True):
        assert run.source_tokenizer.encode(source) == theirs(source).input_ids[:-1]
        ids = theirs(text_target=target).input_ids
        assert run.target_tokenizer.encode(target) == ids[:-1]
    assert run.source_tokenizer.vocabulary != run.target_tokenizer.vocabulary


def test_files_that_do_not_fit(transformers: Any, marian_folder: Path, tmp_path: Path) -> None:
    marian = transformers.MarianConfig.from_pretrained(marian_folder)
    for name in ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"):
        shutil.copy(marian_folder / name, tmp_path)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(UserError, match=r"no target\.spm"):
        read_tokenizers(finder(tmp_path), marian)
    shutil.copy(marian_folder / "target.spm", tmp_path)
    (tmp_path / "vocab.json").write_text('{"<unk>": 0, "a": 100000}')
    with pytest.raises(UserError, match="number 100000"):
        read_tokenizers(finder(tmp_path), marian)
    (tmp_path / "vocab.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="no <unk>"):
        read_tokenizers(finder(tmp_path), marian)


def test_languages(tmp_path: Path) -> None:
    nothing = finder(tmp_path)
    assert read_languages(nothing, "Helsinki-NLP/opus-mt-en-fr") == ("en", "fr")
    assert read_languages(nothing, "Helsinki-NLP/opus-mt-tc-big-en-fr") == ("en", "fr")
    assert read_languages(nothing, "my/model") is None
    (tmp_path / "tokenizer_config.json").write_text('{"source_lang": "deu", "target_lang": "eng"}')
    assert read_languages(nothing, "opus-mt-en-fr") == ("deu", "eng")
