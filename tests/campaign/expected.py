"""What a command makes when nothing disturbs it, and what it must not touch."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from child import Child, at_every_write
from world import Words, Writer

# Times and speeds, which differ from run to run.
TIMED = re.compile(r"seconds|began|spent|per_second|speed|time|hours|peak|date", re.I)


@dataclass(frozen=True)
class Expectation:
    """The files that a verb makes, with their content, and what making them took.

    files: hashes by name; empty where the content depends on the time of day
    """

    files: dict[str, str]
    seconds: float
    writes: int
    bytes: int
    stages: dict[str, float] = field(default_factory=dict)

    @classmethod
    def observe(cls, place: Path, writer: Writer) -> Expectation:
        """Run a verb and see."""
        free, began = space(place), time.monotonic()
        with tempfile.TemporaryFile() as counted:
            child = Child(place, writer.begin, at_every_write(counted.fileno()))
            outcome = child.wait()
            assert outcome["code"] == 0, (writer.begin, outcome)
            writes = os.fstat(counted.fileno()).st_size
        seconds = time.monotonic() - began
        made = fingerprint(place / writer.makes)
        assert made, f"{writer.begin} made nothing"
        stamps = (place / "new" / "stages").glob("*.json")
        stages = {path.stem: json.loads(path.read_text())["seconds"] for path in stamps}
        return cls(made, seconds, writes, max(0, free - space(place)), stages)

    def common(self, other: Expectation) -> Expectation:
        """What both have seen."""
        both = self.files.keys() & other.files.keys()
        same = {n: self.files[n] if self.files[n] == other.files[n] else "" for n in sorted(both)}
        assert any(same.values()), "no two runs make the same"
        return replace(self, files=same)

    def differences(self, files: dict[str, str]) -> list[str]:
        """What is wrong with what a disturbed command has made."""
        wrong = [n for n, d in self.files.items() if n not in files or d not in ("", files[n])]
        return [f"not as undisturbed: {wrong[:4]}"] if wrong else []


def space(place: Path) -> int:
    """Bytes that are free on the disk of a folder."""
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize


def fingerprint(path: Path) -> dict[str, str]:
    """Every file below a path, or the file itself, with a hash of what does not depend on time."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    files = [file for file in files if file.suffix != ".log"]
    return {
        "" if file == path else file.relative_to(path).as_posix(): _digest(file) for file in files
    }


def _digest(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix in (".json", ".jsonl"):
        with suppress(ValueError):  # damaged: compared as it is
            texts = content.decode().splitlines() if path.suffix == ".jsonl" else [content.decode()]
            content = json.dumps([timeless(json.loads(text)) for text in texts]).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def timeless(value: Any) -> Any:
    """A JSON value without its times."""
    if isinstance(value, dict):
        return {name: timeless(part) for name, part in value.items() if not TIMED.search(name)}
    return [timeless(part) for part in value] if isinstance(value, list) else value


def snapshot(folder: Path) -> dict[str, str]:
    """Every file of a world with the hash of its content."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink() and path.is_file()
    }


def outputs_of(words: Words) -> tuple[str, ...]:
    """What a command may write: its output, and what it makes beside its inputs."""
    named = [words[words.index("--out") + 1]] if "--out" in words else []
    if words[0] in ("rank", "roles", "report"):
        named.append(words[1])
    if words[1] == "--resume":
        named.append(words[2])
    return ("new", "corpus/prepared", *named)


def changed(folder: Path, before: dict[str, str], words: Words) -> list[str]:
    """What a command has done wrong to the files of its world."""
    after = snapshot(folder)
    outputs = outputs_of(words)
    different = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
    wrong = [name for name in sorted(different) if not name.startswith((*outputs, "."))]
    lines = [f"an input was changed: {wrong[:3]}"] if wrong else []
    known = set(before.values())  # a damaged file may have been set aside under another name
    for name in sorted(n for n in different & after.keys() if after[n] not in known):
        if name.endswith((".json", ".jsonl")) and not _is_json(folder / name):
            lines.append(f"{name} is not JSON")
    left = [name for name in after if name.endswith((".partial", ".owner"))]
    return lines + ([f"left behind: {left}"] if left else [])


def _is_json(path: Path) -> bool:
    """Whether a file is JSON as the standard has it, without NaN."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    try:
        text = path.read_text()
        for line in text.splitlines() if path.suffix == ".jsonl" else [text]:
            json.loads(line, parse_constant=refuse)
    except ValueError:
        return False
    return True
