"""Ways to damage a file: of its bytes, of its lines, of the values that it holds."""

from __future__ import annotations

import json
import os
import pickle
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Mutation = Callable[[Path, random.Random], None]

STRANGE: list[Any] = [
    None, True, -1, 0, 10**20, 1e308, float("nan"), float("inf"), "", "x", "../../precious", [], {},
    [[]], "\x1b[31m", "a" * 5000, {"a": {"b": 1}}, "=1+1", 1.5, [None],
]  # fmt: skip


def flip_bits(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"x")
    for _ in range(rng.choice((1, 1, 3, 20))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def cut(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content) + 1)])


def insert(path: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    place = rng.randrange(len(content) + 1)
    new = rng.choice((rng.randbytes(30), b"\0", b"\xff\xfe", b"\n\n", b"[" * 3000, b"9" * 5000))
    path.write_bytes(content[:place] + new + content[place:])


def lines(path: Path, rng: random.Random) -> None:
    parts = path.read_bytes().split(b"\n")
    first, second = rng.randrange(len(parts)), rng.randrange(len(parts))
    what = rng.randrange(3)
    if what == 0:
        parts[first], parts[second] = parts[second], parts[first]
    elif what == 1:
        parts.insert(first, parts[second])
    else:
        del parts[first]
    path.write_bytes(b"\n".join(parts))


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def folder_instead(path: Path, rng: random.Random) -> None:
    path.unlink()
    path.mkdir()


def loop_instead(path: Path, rng: random.Random) -> None:
    path.unlink()
    os.symlink(path.name, path)


def json_value(path: Path, rng: random.Random) -> None:
    """Replace, remove or repeat one value somewhere in a JSON file (or a line of one)."""
    texts = path.read_text().split("\n") if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(texts))
    value = json.loads(texts[number] or "{}")
    holder, key = _somewhere(value, rng)
    if holder is None:
        value = rng.choice(STRANGE)
    elif rng.random() < 0.25:
        del holder[key]
    elif isinstance(holder, list) and rng.random() < 0.25:
        holder.append(holder[key])
    else:
        holder[key] = rng.choice(STRANGE)
    texts[number] = json.dumps(value)
    path.write_text("\n".join(texts))


def _somewhere(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container inside a value and one of its keys; nothing where it has none."""
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or rng.random() < 0.7):
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
    return holder, key


def yaml_value(path: Path, rng: random.Random) -> None:
    """Another value behind one colon, a key twice, or an unknown one."""
    text = path.read_text()
    places = [match.span() for match in re.finditer(r"(?<=: )[^\s{}\[\],]+", text)]
    start, end = rng.choice(places) if places else (0, 0)
    what = rng.randrange(4)
    new = json.dumps(rng.choice(STRANGE))
    if what == 0:
        text += f"\nunknown: {new}\n"
    elif what == 1:
        text = text.replace("training:", "training: {}\ntraining:", 1)
    else:
        text = text[:start] + new + text[end:]
    path.write_text(text)


def tensor(path: Path, rng: random.Random) -> None:
    """Another shape, type or number in one tensor, or one more or less of them."""
    tensors = load_file(path)
    name = rng.choice(sorted(tensors) or ["x"])
    old = tensors.get(name, torch.zeros(2, 2))
    kinds = {
        "nan": lambda: old.flatten().index_fill(0, torch.tensor([0]), float("nan")).view_as(old),
        "infinite": lambda: torch.full_like(old, float("inf")),
        "shape": lambda: torch.zeros(rng.randrange(4), 3),
        "type": lambda: old.to(torch.int64),
        "half": lambda: old.half(),
    }
    kind = rng.choice([*kinds, "missing", "stray"])
    if kind == "missing":
        tensors.pop(name, None)
    elif kind == "stray":
        tensors["stray.weight"] = torch.zeros(2)
    else:
        tensors[name] = kinds[kind]()
    save_file(tensors, path)


def header(path: Path, rng: random.Random) -> None:
    """Another header of a safetensors file: sizes, types, offsets, lengths, names."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    table = json.loads(content[8 : 8 + size])
    names = [name for name in table if name != "__metadata__"]
    entry = table[rng.choice(names)]
    kind = rng.randrange(9)
    if kind == 0:
        entry["shape"] = rng.choice(([2**40, 2**40], [-1, 4], [0], [], [2**63], [1.5], "x", None))
    elif kind == 1:
        entry["dtype"] = rng.choice(("F64", "I64", "BOOL", "F8_E4M3", "X", None, 3))
    elif kind == 2:
        start, end = entry["data_offsets"]
        new = ([end, start], [0, 2**62], [-4, 4], [start, end + 4], [start], "x", [0, 0])
        entry["data_offsets"] = rng.choice(new)
    elif kind == 3:  # two tensors in one place
        entry["data_offsets"] = table[rng.choice(names)]["data_offsets"]
    elif kind == 4:
        table["__metadata__"] = rng.choice(({"a": 1}, [], None, {"a": "b" * 100_000}, "x"))
    elif kind == 5:
        table[rng.choice(("../../precious", "\x1b[31m", "", "a" * 70_000))] = dict(entry)
    text = json.dumps(table).encode()
    if kind == 6:
        text = b"[" * 100_000
    if kind == 7:
        text += b" " * rng.choice((1, 7, 100_000))
    length = rng.choice((0, 2**63, 2**64 - 1, len(text) + 8)) if kind == 8 else len(text)
    path.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])


class _Touch:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ../touched",)


def hostile_pickle(path: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        path.write_bytes(pickle.dumps(_Touch(), protocol=rng.choice((0, 2, 4))))
    else:
        torch.save({"model.shared.weight": _Touch()}, path)


def long_line(path: Path, rng: random.Random) -> None:
    """A word of many characters, or many words, in the middle of a text."""
    parts = path.read_text().split("\n")
    parts.insert(rng.randrange(len(parts)), rng.choice(("a" * 30_000, "a b " * 5_000, "é" * 3_000)))
    path.write_text("\n".join(parts))


ALWAYS: tuple[Mutation, ...] = (
    flip_bits, flip_bits, cut, insert, lines, empty, remove, folder_instead, loop_instead
)  # fmt: skip
BY_ENDING: dict[str, tuple[Mutation, ...]] = {
    ".json": (json_value,) * 12,
    ".jsonl": (json_value,) * 8,
    ".yaml": (yaml_value,) * 10,
    ".safetensors": (tensor,) * 8 + (header,) * 8,
    ".bin": (hostile_pickle,) * 6,
    ".en": (long_line,) * 2,
    ".fr": (long_line,) * 2,
}


def mutate(path: Path, rng: random.Random) -> str:
    """Damage a file in one way; its name."""
    mutation = rng.choice((*ALWAYS, *BY_ENDING.get(path.suffix, ())))
    try:
        mutation(path, rng)
    except (ValueError, LookupError):  # it has been damaged before, or is too short for this
        mutation = cut
        mutation(path, rng)
    return mutation.__name__
