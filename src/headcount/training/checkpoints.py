"""Checkpoints: everything an interrupted training needs to arrive at the same weights.

A checkpoint is a folder `checkpoints/00012000/` with safetensors and JSON. It is written completely
or not at all. Random states need not be kept: each micro-batch seeds its own. `digest.json` has the
hash of every other file, so that damage is noticed before training continues from it.
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headcount.data.fetch import sha256_of
from headcount.errors import Notice, UserError
from headcount.files import atomic_folder, inside, parsing, read_json, write_json
from headcount.model.transformer import Transformer
from headcount.run import (
    WEIGHTS,
    check_tensor,
    load_tensors,
    load_weights,
    save_tensors,
    save_weights,
)

FOLDER = "checkpoints"
OPTIMISER = "optimiser.safetensors"
OBJECTIVE = "objective.safetensors"
STATE = "state.json"
DIGEST = "digest.json"
DAMAGED = "damaged"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam keeps of each parameter."""


@dataclass
class TrainingState:
    """Where training stands; kept in every checkpoint."""

    update: int = 0
    epoch: int = 0
    seconds: float = 0.0
    source_tokens: int = 0
    best_loss: float | None = None
    evaluations_since_best: int = 0
    stopped: str = ""
    processes: int = 0
    """How many training began with: its updates are cut for them; 0 (older runs): for those now."""
    window: dict[str, Any] = field(default_factory=dict)
    """What had been summed up since the last logged line; see `metrics.Window`."""

    @classmethod
    def of(cls, checkpoint: Path) -> TrainingState:
        """Read where training stood at a checkpoint."""
        where = checkpoint / STATE
        with parsing(where, "Delete that checkpoint and resume from the one before."):
            state = cls(**read_json(where))
            counts = [state.update, state.epoch, state.source_tokens, state.evaluations_since_best]
            counts.append(state.processes)
            if not all(type(count) is int and count >= 0 for count in counts):
                raise ValueError("counts are whole numbers from 0 on")
            if state.best_loss == float("inf"):  # of an earlier version: no evaluation yet
                state.best_loss = None
            numbers = [state.seconds, *([] if state.best_loss is None else [state.best_loss])]
            if not all(type(value) in (int, float) for value in numbers):
                raise TypeError("seconds and best_loss are numbers")
            if not all(0 <= value < float("inf") for value in numbers):
                raise ValueError("seconds and best_loss are finite, and not below 0")
            if state.update != int(checkpoint.name):
                raise ValueError(
                    f"it is of update {state.update}, its folder of {int(checkpoint.name)}"
                )
            return state


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    folder = run / FOLDER
    entries = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in entries if path.name.isdigit() and (path / STATE).is_file())


def save_checkpoint(
    run: Path,
    update: int,
    model: Transformer,
    optimiser: torch.optim.Optimizer,
    extra: dict[str, Tensor],
    state: dict[str, Any],
    keep: int,
    every: int = 1,
) -> Path:
    """Write the checkpoint of an update and drop the oldest beyond `keep`.

    One between two multiples of `every`, where training was interrupted, is dropped as soon as
    there is a newer one: what is averaged at the end must not depend on interruptions.
    """
    path = run / FOLDER / f"{update:08d}"
    if not (path / STATE).is_file():
        shutil.rmtree(path, ignore_errors=True)  # a deletion that was killed halfway
        with atomic_folder(path) as partial:
            save_weights(model, partial / WEIGHTS)
            save_tensors(_flatten(optimiser), partial / OPTIMISER)
            save_tensors(extra, partial / OBJECTIVE)
            write_json(partial / STATE, {"update": update, **state})
            hashes = {file.name: sha256_of(file) for file in sorted(partial.iterdir())}
            write_json(partial / DIGEST, hashes)
    *older, newest = list_checkpoints(run)
    regular = [old for old in older if int(old.name) % every == 0]
    for old in {*older} - {*[*regular, newest][-keep:]}:
        shutil.rmtree(old, ignore_errors=True)
    return path


def newest_sound(run: Path) -> Path | None:
    """The newest undamaged checkpoint; damaged ones after it are set aside."""
    for path in reversed(list_checkpoints(run)):
        try:
            check_digest(path)
        except UserError as error:
            aside = path.with_name(f"{path.name}.{DAMAGED}")
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
            warnings.warn(
                Notice(f"{error.problem} It is now {aside.name}; the one before it is used."),
                stacklevel=2,
            )
        else:
            return path
    return None


def check_digest(path: Path) -> None:
    """Stop if a file of a checkpoint has changed (checkpoints of old versions have no hashes)."""
    if not (path / DIGEST).is_file():
        return
    hashes = read_json(path / DIGEST)
    with parsing(path / DIGEST):
        for name, expected in hashes.items():
            file = inside(path, name)
            if not file.is_file() or sha256_of(file) != expected:
                what = "has changed since it was written" if file.is_file() else "is missing"
                raise UserError(
                    f"Checkpoint {path} is damaged: {name} {what}.",
                    "Delete that folder and resume from the one before.",
                )


def load_checkpoint(
    path: Path, model: Transformer, optimiser: torch.optim.Optimizer
) -> TrainingState:
    """Put a checkpoint back into model and optimiser; where training stood."""
    check_digest(path)
    load_weights(model, path / WEIGHTS)
    _unflatten(optimiser, load_tensors(path / OPTIMISER), path / OPTIMISER)
    return TrainingState.of(path)


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints."""
    total: dict[str, Tensor] = {}
    for path in paths:
        check_digest(path)
        for name, tensor in load_tensors(path / WEIGHTS).items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _parameters(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _flatten(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Adam's state as named tensors: `7.exp_avg` belongs to the seventh parameter."""
    return {
        f"{i}.{name}": value.detach().cpu().contiguous()
        for i, parameter in enumerate(_parameters(optimiser))
        for name, value in optimiser.state.get(parameter, {}).items()
    }


def _unflatten(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor], path: Path) -> None:
    """Put named tensors back; a wrong one would crash the optimiser's own code."""
    parameters = _parameters(optimiser)
    expected = {f"{i}.{name}": p for i, p in enumerate(parameters) for name in MOMENTS}
    trained = {key.split(".", 1)[0] for key in tensors}
    for key in sorted({f"{number}.{name}" for number in trained for name in MOMENTS} | {*tensors}):
        if key not in expected or key not in tensors:
            what = "is missing" if key in expected else "belongs to no parameter"
            raise UserError(
                f"{path} does not fit the model: {key} {what}.",
                "Delete that checkpoint and resume from the one before.",
            )
        shape = torch.Size() if key.endswith(".step") else expected[key].shape
        check_tensor(path, key, tensors[key], shape)
    for key, value in tensors.items():
        parameter = expected[key]
        optimiser.state[parameter][key.split(".", 1)[1]] = value.to(parameter.device)
