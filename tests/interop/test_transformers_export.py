from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from headcount.errors import UserError
from headcount.heads import Head
from headcount.interop.checking import make_sample, own_logits
from headcount.interop.export import export
from headcount.interop.families import FAMILIES
from headcount.interop.importing import import_run
from headcount.interop.transformers_export import check_transformers, family_of_run
from headcount.model.gating import remove_heads
from headcount.run import Run, regroup
from headcount.translation import translate

GONE = [*(Head("enc", 0, i) for i in range(4)), Head("dec", 1, 0), Head("cross", 0, 2)]


@pytest.fixture
def pruned(marian_run: Run) -> Run:
    return Run(
        Path("pruned"), marian_run.config, remove_heads(marian_run.model, GONE),
        marian_run.source_tokenizer, marian_run.target_tokenizer,
    )  # fmt: skip


@torch.no_grad()
def test_units_and_blocks_that_are_gone_make_it_smaller(
    transformers: Any, marian_run: Run, english: list[str], tmp_path: Path
) -> None:
    """Marian is post-norm: its layers stay, with zeros, but are narrower."""
    run = regroup(marian_run, 4)
    blocks = run.model.heads.layers["enc_ff"][0]
    gone = [Head("enc_ff", layer, i) for layer in range(2) for i in blocks[layer + 2 :]]
    gone += [Head("enc_layers", 1, 0), Head("dec_layers", 0, 1), Head("dec_ff", 1, 0)]
    run = replace(run, model=remove_heads(run.model, gone))
    exported = export(run, "marian", tmp_path / "out", lines=english[:5])
    config = transformers.MarianConfig.from_pretrained(tmp_path / "out")
    assert config.encoder_ffn_dim == 12
    assert exported.padded_units == 4 + 4
    assert exported.padded_heads == 2 * len(marian_run.model.heads.layers["enc"][0])


@torch.no_grad()
def test_ragged_heads_come_back_as_zeros(
    transformers: Any, pruned: Run, english: list[str], tmp_path: Path
) -> None:
    exported = export(pruned, "marian", tmp_path / "out", lines=english[:5])
    assert exported.padded_heads == len(GONE)
    theirs = transformers.MarianMTModel.from_pretrained(tmp_path / "out").eval()
    sample = make_sample(pruned, seed=9)
    torch.testing.assert_close(
        FAMILIES["marian"].adapter.logits(theirs, sample, pruned.model.pad),
        own_logits(pruned, sample),
        atol=1e-4,
        rtol=0,
    )
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path / "out")
    found = theirs.generate(**tokenizer(english[:8], return_tensors="pt", padding=True))
    assert translate(pruned, english[:8]) == (
        tokenizer.batch_decode(found, skip_special_tokens=True)
    )


def test_there_and_back(marian_run: Run, tmp_path: Path) -> None:
    export(marian_run, "marian", tmp_path / "out")
    again = import_run(tmp_path / "out", tmp_path / "run").run
    assert again.config == marian_run.config
    ours, theirs = marian_run.model.state_dict(), again.model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for side in ("source_tokenizer", "target_tokenizer"):
        assert getattr(again, side).to_dict() == getattr(marian_run, side).to_dict()


@pytest.mark.parametrize("tie", ["none", "target", "inputs", "all"])
@torch.no_grad()
def test_a_run_of_our_own(
    transformers: Any, make_run: Callable[..., Run], tmp_path: Path, tie: str
) -> None:
    """Post-norm, with BPE of our own; its tokenisers are for the tokenizers library."""
    run = make_run(
        1, ["enc.0.1"], norm="post", tie=tie, output_bias=True, decoder_heads=2, decoder_ff_width=9
    )
    exported = export(run, "marian", tmp_path / "out")
    assert exported.difference < 1e-4
    assert any("SentencePiece" in note for note in exported.notes)
    path = str(tmp_path / "out" / "source_tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=path)
    assert fast("A red car.").input_ids == run.source_tokenizer.encode("A red car.")


def test_pre_norm_is_refused(
    transformers: Any, make_run: Callable[..., Run], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="post-norm"):
        export(make_run(0), "marian", tmp_path / "out")
    with pytest.raises(UserError, match=r"does not \(model.position_base\)"):
        export(make_run(0, norm="post", position_base=50.0), "marian", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_another_model_is_noticed(marian_run: Run, pruned: Run, tmp_path: Path) -> None:
    export(marian_run, "marian", tmp_path / "out")
    with pytest.raises(UserError, match="other numbers"):
        check_transformers(pruned, tmp_path / "out", [], family_of_run(pruned))
