"""Checkpoints: all that an interrupted training needs to go on to the same weights.

A checkpoint is a folder `checkpoints/00012000/` with safetensors and JSON. It appears whole or
not at all, and random numbers need not be kept: each micro-batch seeds its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor

from headcount.errors import UserError
from headcount.files import atomic_folder, read_json, write_json
from headcount.model.transformer import Transformer
from headcount.run import WEIGHTS, load_weights, save_tensors, save_weights

FOLDER = "checkpoints"
OPTIMISER = "optimiser.safetensors"
OBJECTIVE = "objective.safetensors"
STATE = "state.json"


def list_checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    folder = run / FOLDER
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.name.isdigit() and (path / STATE).is_file())


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
        shutil.rmtree(path, ignore_errors=True)  # what a kill left of a deletion
        with atomic_folder(path) as partial:
            save_weights(model, partial / WEIGHTS)
            save_tensors(_flatten(optimiser), partial / OPTIMISER)
            save_tensors(extra, partial / OBJECTIVE)
            write_json(partial / STATE, {"update": update, **state})
    *older, newest = list_checkpoints(run)
    regular = [old for old in older if int(old.name) % every == 0]
    for old in {*older} - {*[*regular, newest][-keep:]}:
        shutil.rmtree(old, ignore_errors=True)
    return path


def load_checkpoint(
    path: Path, model: Transformer, optimiser: torch.optim.Optimizer
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put a checkpoint back into model and optimiser; its state and the objective's tensors."""
    load_weights(model, path / WEIGHTS)
    try:
        _unflatten(optimiser, load_file(path / OPTIMISER))
        extra = load_file(path / OBJECTIVE)
    except (safetensors.SafetensorError, OSError, KeyError) as error:
        raise UserError(
            f"{path} is damaged ({error}).", "Delete that folder and resume from the one before."
        ) from error
    return read_json(path / STATE), extra


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints."""
    total: dict[str, Tensor] = {}
    for path in paths:
        for name, tensor in load_file(path / WEIGHTS).items():
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


def _unflatten(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    parameters = _parameters(optimiser)
    for key, value in tensors.items():
        number, name = key.split(".", 1)
        parameter = parameters[int(number)]
        optimiser.state[parameter][name] = value.to(parameter.device)
