"""Checkpoints that are damaged: noticed, named, and the one before is used."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from headcount.config import Config
from headcount.errors import Notice, UserError
from headcount.training.checkpoints import DIGEST, list_checkpoints
from headcount.training.train import train

Make = Callable[..., Config]
Damage = Callable[[Path], None]


@pytest.fixture
def half_way(make_config: Make, tmp_path: Path) -> Path:
    """A run with checkpoints 4 and 8."""
    train(make_config(updates=8), tmp_path / "run")
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == ["00000004", "00000008"]
    return tmp_path / "run"


def flip_a_byte(name: str) -> Damage:
    def damage(checkpoint: Path) -> None:
        content = bytearray((checkpoint / name).read_bytes())
        content[-5] ^= 1
        (checkpoint / name).write_bytes(content)

    return damage


def change_state(**changes: object) -> Damage:
    def damage(checkpoint: Path) -> None:
        state = json.loads((checkpoint / "state.json").read_text()) | changes
        kept = {name: value for name, value in state.items() if value != "gone"}
        (checkpoint / "state.json").write_text(json.dumps(kept))

    return damage


def change_tensors(file: str, change: Callable[[dict[str, torch.Tensor]], None]) -> Damage:
    def damage(checkpoint: Path) -> None:
        tensors = load_file(checkpoint / file)
        change(tensors)
        save_file(tensors, checkpoint / file)

    return damage


def first(tensors: dict[str, torch.Tensor], ending: str) -> str:
    return next(name for name in sorted(tensors) if name.endswith(ending))


def reshape_a_moment(tensors: dict[str, torch.Tensor]) -> None:
    tensors[first(tensors, ".exp_avg")] = torch.zeros(3)


def spoil_a_moment(tensors: dict[str, torch.Tensor]) -> None:
    tensors[first(tensors, ".exp_avg_sq")].view(-1)[0] = float("nan")


def drop_a_moment(tensors: dict[str, torch.Tensor]) -> None:
    del tensors[first(tensors, ".step")]


def stray_moment(tensors: dict[str, torch.Tensor]) -> None:
    tensors["9999.exp_avg"] = torch.zeros(1)


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "state.json"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    half_way: Path, make_config: Make, tmp_path: Path, name: str
) -> None:
    flip_a_byte(name)(list_checkpoints(half_way)[-1])
    with pytest.warns(Notice, match=f"00000008 is damaged: {name} has changed"):
        train(make_config(updates=8), half_way, resume=True)
    assert (half_way / "checkpoints" / "00000008.damaged").is_dir()
    train(make_config(updates=8), tmp_path / "whole")
    one, other = (load_file(run / "model.safetensors") for run in (half_way, tmp_path / "whole"))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (change_state(update=12), "it is of update 12, its folder of 8"),
        (change_state(update="gone"), "it is of update 0, its folder of 8"),
        (change_state(epoch=-1), "whole numbers"),
        (change_state(seconds="long"), "are numbers"),
        (change_state(best_loss="low"), "are numbers"),
        (change_state(best_loss=-1.0), "not below 0"),
        (change_state(window={"sums": 3}), r"state\.json does not hold"),
        (change_state(unknown=1), "unknown"),
        (change_tensors("optimiser.safetensors", reshape_a_moment), r"exp_avg is \[3\], not \["),
        (change_tensors("optimiser.safetensors", spoil_a_moment), "exp_avg_sq has numbers"),
        (change_tensors("optimiser.safetensors", drop_a_moment), "step is missing"),
        (change_tensors("optimiser.safetensors", stray_moment), "belongs to no parameter"),
    ],
)
def test_without_hashes_every_value_is_checked_too(
    half_way: Path, make_config: Make, damage: Damage, says: str
) -> None:
    newest = list_checkpoints(half_way)[-1]
    (newest / DIGEST).unlink()
    damage(newest)
    with pytest.raises(UserError, match=says):
        train(make_config(updates=8), half_way, resume=True)


def test_what_is_averaged_is_checked(half_way: Path, make_config: Make) -> None:
    flip_a_byte("model.safetensors")(list_checkpoints(half_way)[0])
    with pytest.raises(UserError, match="00000004 is damaged"):
        train(make_config(updates=8, average_checkpoints=2), half_way, resume=True)


def test_checkpoints_of_an_older_version_have_no_hashes(half_way: Path, make_config: Make) -> None:
    for checkpoint in list_checkpoints(half_way):
        (checkpoint / DIGEST).unlink()
        change_state(window="gone")(checkpoint)
    _, state = train(make_config(updates=10), half_way, resume=True)
    assert state.update == 10


def test_a_digest_never_reads_outside_its_checkpoint(half_way: Path, make_config: Make) -> None:
    newest = list_checkpoints(half_way)[-1]
    (newest / DIGEST).write_text(json.dumps({"../../config.yaml": "0"}))
    shutil.rmtree(list_checkpoints(half_way)[0])
    with pytest.warns(Notice, match="does not name anything inside"):
        train(make_config(updates=8), half_way, resume=True)
