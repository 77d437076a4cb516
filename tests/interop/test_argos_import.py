"""Packages of Argos Translate: MarianMT checkpoints that CTranslate2's own converter has packed."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount import import_run, load_run
from headcount.errors import UserError
from headcount.interop.argos_import import read_variables
from headcount.interop.assembling import padded_tokenizer
from headcount.interop.checking import make_sample
from headcount.interop.sentencepiece_model import pieces_by_rank

CONTENT: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": " "},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
}

Pack = Callable[..., Path]


@pytest.fixture
def pack(make_checkpoint: Callable[..., Path], tmp_path: Path) -> Pack:
    """A package of a random MarianMT model, which lies beside it."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="the extra ctranslate2 is missing")

    def packed(quantization: str | None = None, **changes: Any) -> Path:
        checkpoint, folder = make_checkpoint(tmp_path / "marian", **changes), tmp_path / "argos"
        converter = ctranslate2.converters.TransformersConverter(str(checkpoint))
        folder.mkdir()
        converter.convert(str(folder / "model"), quantization=quantization)
        shutil.copyfile(checkpoint / "source.spm", folder / "sentencepiece.model")
        metadata = {"from_code": "en", "to_code": "fr"}
        (folder / "metadata.json").write_text(json.dumps(metadata))
        return folder

    return packed


def logits(run: Any, sample: Any) -> torch.Tensor:
    """Of a sample's real target tokens, without those of the padding."""
    with torch.inference_mode():
        result: torch.Tensor = run.model(sample.source, sample.target)[sample.real]
    names = run.target_tokenizer.tokens()
    return result[:, [i for i, name in enumerate(names) if name and name != "<pad>"]]


def test_a_package_is_the_model_that_it_was_made_of(pack: Pack, tmp_path: Path) -> None:
    folder = pack()
    imported = import_run(folder, tmp_path / "run")
    assert imported.difference is not None
    assert imported.difference < 1e-5
    run = load_run(tmp_path / "run")
    assert (run.config.data.source, run.config.data.target) == ("en", "fr")
    model = import_run(tmp_path / "marian", tmp_path / "other", languages=("en", "fr")).run
    text = "A dog sees the old house."
    assert run.source_tokenizer.encode(text) == model.source_tokenizer.encode(text)
    sample = make_sample(model)
    assert run.source_tokenizer.pad == model.source_tokenizer.pad
    assert torch.allclose(logits(run, sample), logits(model, sample), atol=1e-4)


def test_eight_bits_are_computed_as_ctranslate2_does(pack: Pack, tmp_path: Path) -> None:
    difference = import_run(pack("int8"), tmp_path / "run").difference
    assert difference is not None
    assert difference < 1e-5
    stored = load_run(tmp_path / "run").model.state_dict()
    exact = import_run(tmp_path / "marian", tmp_path / "other", languages=("en", "fr")).run
    name = "encoder.0.self_attention.attention.in_weight"
    error = (stored[name] - exact.model.state_dict()[name]).abs()
    step = exact.model.state_dict()[name].abs().amax(1, keepdim=True) / 127
    assert (error <= 0.51 * step).all()
    assert error.any()


def test_a_damaged_package_is_one_clear_line(pack: Pack, tmp_path: Path) -> None:
    folder = pack()
    path = folder / "model" / "model.bin"
    content = path.read_bytes()
    for end in (3, 20, 200, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(UserError):
            import_run(folder, tmp_path / "run")
    path.write_bytes(b"\x63" + content[1:])
    with pytest.raises(UserError, match="format 99"):
        import_run(folder, tmp_path / "run")
    path.write_bytes(content)
    (folder / "metadata.json").unlink()
    with pytest.raises(UserError, match="--languages"):
        import_run(folder, tmp_path / "run")
    (folder / "model" / "shared_vocabulary.json").write_text("{}")
    with pytest.raises(UserError, match="not a list of tokens"):
        import_run(folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_kind_of_model_is_refused(pack: Pack, tmp_path: Path) -> None:
    folder = pack()
    path = folder / "model" / "model.bin"
    name = b"decoder/start_from_zero_embedding\0"
    content = path.read_bytes()
    assert read_variables(path)["decoder/start_from_zero_embedding"] == 1
    value = content.index(name) + len(name) + 1 + 1 + 4  # rank, type, length
    path.write_bytes(content[:value] + b"\0" + content[value + 1 :])
    with pytest.raises(UserError, match="start_from_zero_embedding: 0"):
        import_run(folder, tmp_path / "run")


def test_a_target_side_without_its_sentencepiece_model(pack: Pack, tmp_path: Path) -> None:
    """Argos packs the source's alone: target text must be cut into pieces of the vocabulary."""
    folder = pack()
    path = folder / "model" / "shared_vocabulary.json"
    names = json.loads(path.read_text())
    first = len(names) // 2  # the frequent ones are both sides', the others the target's alone
    names[first:] = [f"▁ж{'ш' * i}" for i in range(len(names) - first)]
    path.write_text(json.dumps(names))
    imported = import_run(folder, tmp_path / "run")
    [note] = imported.notes
    assert "source side alone" in note
    source, target = imported.run.source_tokenizer, imported.run.target_tokenizer
    assert target.encode("ж жш") == [first, first + 1]
    assert source.unk in source.encode("ж жш")
    assert target.decode(target.encode("ж жш")) == "ж жш"


def test_pieces_by_rank_make_the_likeliest_sum() -> None:
    names = ["</s>", "<unk>", "▁a", "b", "▁ab", "c", "▁", "bc", "abc"]
    tokenizer = padded_tokenizer(pieces_by_rank(CONTENT, names, "<unk>"), names)
    likelihood = {name: -math.log(rank) for rank, name in enumerate(names, 1)}
    normaliser = math.log(sum(1 / rank for rank in range(1, len(names) + 1)))
    for word in ("ab", "abc", "abbc", "aabc"):
        ways = [
            way
            for size in range(1, len(word) + 2)
            for way in itertools.product(names[2:], repeat=size)
            if "".join(way) == f"▁{word}"
        ]
        scores = {way: sum(likelihood[name] - normaliser for name in way) for way in ways}
        best = max(scores, key=scores.__getitem__)
        assert [names[i] for i in tokenizer.inside(word)] == list(best)
