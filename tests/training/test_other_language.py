"""Trainings that begin with the encoder of a run and write another language."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headcount.config import Config
from headcount.errors import Notice, UserError
from headcount.run import load_run
from headcount.training.train import train

Make = Callable[..., Config]

STILL = {"updates": 1, "learning_rate_scale": 1e-9}
"""A rate of almost nothing: the weights are those that a training began with."""


@pytest.fixture
def german(make_config: Make, tmp_path: Path) -> Make:
    """Configurations for the same source text with other targets, in a folder of its own."""
    folder = tmp_path / "german"
    shutil.copytree(make_config().data.folder, folder)  # type: ignore[arg-type]
    for path in folder.glob("*.fr"):
        lines = path.read_text(encoding="utf-8").splitlines()
        reversed_ = "".join(f"{line[::-1]}\n" for line in lines)
        path.with_suffix(".de").write_text(reversed_, encoding="utf-8")
        path.unlink()
    (folder / "corpus.json").unlink(missing_ok=True)
    shutil.rmtree(folder / "prepared", ignore_errors=True)

    def make(source: str = "en", **training: object) -> Config:
        config = make_config(**training)
        changes = {"folder": folder, "source": source, "target": "de", "target_vocabulary": 50}
        return config.model_copy(update={"data": config.data.model_copy(update=changes)})

    return make


def test_the_encoder_is_taken_and_the_target_side_begins_anew(
    make_config: Make, german: Make, tmp_path: Path
) -> None:
    first, _ = train(make_config(updates=4), tmp_path / "first")
    with pytest.warns(Notice, match=r"decoder begins anew: .* another data\.target \('fr', now 'd"):
        begun, _ = train(german(**STILL), tmp_path / "on", start_from=tmp_path / "first")
    before = load_file(tmp_path / "first" / "model.safetensors")
    after = load_file(tmp_path / "on" / "model.safetensors")
    taken = [name for name in after if name.split(".")[0].split("_")[0] in ("encoder", "source")]
    assert {name.split(".")[0] for name in taken} >= {"encoder", "source_embedding"}
    for name in taken:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)
    drawn = [name for name in after if name not in taken and after[name].std() > 1e-3]
    assert drawn
    for name in drawn:
        same = after[name].shape == before[name].shape
        assert not (same and torch.allclose(after[name], before[name], atol=1e-3)), name
    assert begun.source_tokenizer.fingerprint() == first.source_tokenizer.fingerprint()
    assert begun.target_tokenizer.fingerprint() != first.target_tokenizer.fingerprint()


def test_it_is_resumed_with_its_own_vocabulary(
    make_config: Make, german: Make, tmp_path: Path
) -> None:
    train(make_config(updates=4), tmp_path / "first")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        train(german(updates=8), tmp_path / "whole", start_from=tmp_path / "first")
        train(german(updates=4), tmp_path / "parts", start_from=tmp_path / "first")
        train(german(updates=8), tmp_path / "parts", resume=True)
    whole, parts = (load_run(tmp_path / name) for name in ("whole", "parts"))
    for name, tensor in whole.model.state_dict().items():
        torch.testing.assert_close(parts.model.state_dict()[name], tensor, atol=0, rtol=0)


def test_the_source_language_stays(make_config: Make, german: Make, tmp_path: Path) -> None:
    train(make_config(updates=1), tmp_path / "first")
    with pytest.raises(UserError, match="reads en, the recipe nl"):
        train(german(source="nl", **STILL), tmp_path / "on", start_from=tmp_path / "first")
    assert not (tmp_path / "on").exists()


def test_a_vocabulary_that_both_sides_share_cannot_begin_anew(
    make_config: Make, german: Make, tmp_path: Path
) -> None:
    def shared(config: Config) -> Config:
        return config.model_copy(update={"model": config.model.model_copy(update={"tie": "all"})})

    folder = Path(str(make_config().data.folder))
    for path in folder.glob("*.en"):  # the same text on both sides: one vocabulary
        shutil.copy(path, path.with_suffix(".fr"))
    train(shared(make_config(updates=1)), tmp_path / "first")
    with pytest.raises(UserError, match="share one vocabulary"):
        train(shared(german(**STILL)), tmp_path / "on", start_from=tmp_path / "first")
    assert not (tmp_path / "on").exists()
