"""Model files of the Marian toolkit itself: `.npz`, and its binary format with 8-bit weights.

A binary file (version 1) has a table of its items (lengths of name, shape and data, and a type),
their names, their shapes, some padding, and the data. A matrix of the type `intgemm8` has one byte
per weight, by columns unless it is an embedding, and after them the factor that weights were
multiplied by: small translation models for browsers are stored so (Bogoychev et al. 2020).
"""

from __future__ import annotations

import zipfile
import zlib
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.errors import UserError
from headcount.files import parsing
from headcount.yaml_reading import parse_yaml

SETTINGS = "special:model.yml"
EMBEDDING = "Wemb"
_FLOAT32, _INTGEMM8 = 0x404, 0x4101
_REMEDY = "Fetch the model again."
LARGEST = 100
"""How many times its size a compressed file may unpack to: weights do not compress well."""

_UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    RuntimeError,
    EOFError,
    OSError,
    MemoryError,
    SyntaxError,
    TokenError,
)
"""What damaged `.npz` files raise."""


@dataclass(frozen=True)
class MarianFile:
    """Settings of a model and its matrices `[inputs, outputs]` by Marian's names, in float32."""

    path: Path
    settings: dict[str, Any]
    tensors: dict[str, Tensor]


def find_marian_file(folder: Path) -> Path | None:
    """The one model file of Marian in a folder that is not one of transformers, if there is one."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return None
    files = [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and (path.suffix == ".npz" or _is_binary(path))
    ]
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise UserError(
            f"{folder} holds several models: {names}.",
            "Put one of them, with its vocabulary, into a folder of its own.",
        )
    return files[0] if files else None


def read_marian_file(path: Path) -> MarianFile:
    """Read a model; nothing in it is ever run."""
    with parsing(path, _REMEDY):
        settings, tensors = _read_npz(path) if path.suffix == ".npz" else _read_binary(path)
    if not settings:
        raise UserError(f"{path} has no settings of a Marian model.", _REMEDY)
    return MarianFile(path, parse_yaml(settings, path, required=True), tensors)


def _is_binary(path: Path) -> bool:
    if path.suffix != ".bin":
        return False
    with path.open("rb") as handle:
        return handle.read(8) == (1).to_bytes(8, "little")


def _read_npz(path: Path) -> tuple[str, dict[str, Tensor]]:
    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(member.file_size for member in packed.infolist())
        if size > LARGEST * max(path.stat().st_size, 1):
            raise ValueError(f"it would unpack to {size} bytes")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except _UNREADABLE as error:
        raise ValueError(str(error)) from error
    settings = arrays.pop(SETTINGS, np.zeros(0, np.int8)).tobytes()
    floats = {name: array for name, array in arrays.items() if not name.startswith("special:")}
    return _text(settings), {
        name: torch.from_numpy(array.astype(np.float32)) for name, array in floats.items()
    }


def _read_binary(path: Path) -> tuple[str, dict[str, Tensor]]:
    content, at = path.read_bytes(), 16

    def take(kind: str, count: int) -> Any:
        nonlocal at
        values = np.frombuffer(content, kind, count, at) if count else np.zeros(0, kind)
        at += values.nbytes
        return values

    items = int(np.frombuffer(content, "<u8", 1, 8)[0])
    table = take("<u8", 4 * items).reshape(items, 4).tolist()  # name, type, shape, data
    names = [_text(take("i1", length).tobytes()) for length, *_ in table]
    shapes = [take("<i4", length).tolist() for _, _, length, _ in table]
    take("i1", int(take("<u8", 1)[0]))  # so that the data is aligned
    settings, tensors = "", dict[str, Tensor]()
    for name, shape, (_, kind, _, length) in zip(names, shapes, table, strict=True):
        if min(shape, default=0) < 1:
            raise ValueError(f"{name} has the shape {shape}")
        data, size = take("i1", length), prod(shape)
        if name == SETTINGS:
            settings = _text(data.tobytes())
        elif kind == _FLOAT32:
            array = np.frombuffer(data.tobytes(), "<f4", size)
            tensors[name] = torch.from_numpy(array.reshape(shape).copy())
        elif kind == _INTGEMM8 and size > 1:  # a single one is a factor of activations
            tensors[name] = torch.from_numpy(_weights(name, data, shape))
        elif kind != _INTGEMM8:
            raise UserError(
                f"{path}: {name} has numbers of a kind that is not supported ({kind:#x}).",
                "Supported: float32, and 8 bits for any processor (marian-conv -g intgemm8).",
            )
    return settings, tensors


def _weights(name: str, data: Any, shape: list[int]) -> Any:
    """The weights of an 8-bit matrix."""
    size = prod(shape)
    factor = np.frombuffer(data.tobytes(), "<f4", 1, size)[0]
    if not (np.isfinite(factor) and factor > 0):
        raise ValueError(f"{name} has the factor {factor}")
    stored = data[:size]
    whole = stored.reshape(shape) if name.endswith(EMBEDDING) else stored.reshape(shape[::-1]).T
    return np.ascontiguousarray(whole, np.float32) / factor


def _text(stored: bytes) -> str:
    return stored.rstrip(b"\0").decode("utf-8")
