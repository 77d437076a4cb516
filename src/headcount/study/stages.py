"""One stage of a study: a command, what it needs, and whether it has been done.

A stage is done when its stamp carries the hash of all its inputs (the command itself, the files
it names and the hashes of the stages it needs) and its results are complete. So nothing is ever
repeated, a change in a recipe repeats exactly what depends on it, and a training that was cut short
is never taken for a finished one.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headcount import __version__
from headcount.files import read_json, write_json
from headcount.pruning.record import is_finished
from headcount.training.metrics import FILE as METRICS
from headcount.training.metrics import read_metrics


def is_trained(run: Path) -> bool:
    """Whether a training has come to its end: its last logged line is the final evaluation."""
    lines = read_metrics(run / METRICS) if (run / METRICS).is_file() else []
    return bool(lines) and lines[-1].get("kind") == "final"


COMPLETE: Mapping[str, Callable[[Path], bool]] = {"train": is_trained, "prune": is_finished}
"""For kinds of stages whose work can be cut short: whether what they made is complete.

All other kinds write their files and folders whole or not at all.
"""


@dataclass(frozen=True)
class Stage:
    """A command of the study.

    name      unique in the study, `en-fr/rank`
    kind      what sort of work it is; stages of one kind take similar time
    command   a module of this package and its arguments; `resume` is added where it was killed
    makes     files and folders that are removed when the stage must start over
    needs     names of stages that come before
    reads     files whose content matters, beside what other stages made
    seconds   a rough estimate, where nothing like it has been timed yet
    """

    name: str
    kind: str
    command: tuple[str, ...]
    makes: tuple[Path, ...] = ()
    needs: tuple[str, ...] = ()
    reads: tuple[Path, ...] = ()
    resume: tuple[str, ...] = ()
    seconds: float = 60.0

    def complete(self) -> bool:
        """Whether everything that the stage makes exists and is complete."""
        whole = COMPLETE.get(self.kind, Path.exists)
        return all(path.exists() and whole(path) for path in self.makes)


@dataclass
class Book:
    """What the study folder records about its stages."""

    folder: Path
    stages: dict[str, Stage]
    hashes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, stages: Iterable[Stage]) -> Book:
        """The book of a study; stages must be in an order in which needs come first."""
        book = cls(folder, {stage.name: stage for stage in stages})
        for stage in book.stages.values():
            book.hashes[stage.name] = book._hash(stage)
        return book

    def done(self, name: str) -> bool:
        """Whether the stage has been finished with exactly these inputs."""
        stamp = self.stamp(name)
        stamped = stamp.get("hash") == self.hashes[name] and "seconds" in stamp
        return stamped and self.stages[name].complete()

    def stamp(self, name: str) -> dict[str, Any]:
        """What was written when the stage began and when it ended."""
        path = self._stamp_path(name)
        stamp: dict[str, Any] = read_json(path) if path.exists() else {}
        return stamp

    def log_path(self, name: str) -> Path:
        """Where the stage's output goes."""
        return self.folder / "stages" / f"{name.replace('/', '--')}.log"

    def begin(self, name: str) -> list[str]:
        """Record that a stage begins; returns the command to run, which resumes a killed stage."""
        stage, stamp = self.stages[name], self.stamp(name)
        begun = stamp.get("hash") == self.hashes[name]
        there = "seconds" not in stamp or all(path.exists() for path in stage.makes)
        resume = bool(stage.resume) and begun and there
        if not resume:
            for path in stage.makes:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        spent = stamp.get("spent", 0.0) if resume else 0.0
        entry = {"hash": self.hashes[name], "began": time.time(), "spent": spent}
        write_json(self._stamp_path(name), entry)
        module, *arguments = stage.command
        return [sys.executable, "-m", module, *arguments, *(stage.resume if resume else ())]

    def end(self, name: str) -> None:
        """Record that a stage has been finished."""
        stamp = self.stamp(name)
        seconds = stamp["spent"] + time.time() - stamp["began"]
        write_json(self._stamp_path(name), stamp | {"seconds": seconds})

    def pause(self, name: str) -> None:
        """Record the time of a stage that was stopped and will be resumed later."""
        stamp = self.stamp(name)
        write_json(
            self._stamp_path(name), stamp | {"spent": stamp["spent"] + time.time() - stamp["began"]}
        )

    def estimate(self, name: str) -> float:
        """Seconds that a stage will take: as others of its kind did, else the plan's guess."""
        kind = self.stages[name].kind
        timed = [
            self.stamp(other)["seconds"]
            for other, stage in self.stages.items()
            if stage.kind == kind and self.done(other)
        ]
        return sum(timed) / len(timed) if timed else self.stages[name].seconds

    def _stamp_path(self, name: str) -> Path:
        return self.folder / "stages" / f"{name.replace('/', '--')}.json"

    def _hash(self, stage: Stage) -> str:
        digest = hashlib.sha256()
        digest.update(json.dumps([__version__, stage.kind, stage.command]).encode())
        for path in stage.reads:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        for need in stage.needs:
            digest.update(self.hashes[need].encode())
        return digest.hexdigest()[:20]


def start(command: list[str], log: Path, threads: int) -> subprocess.Popen[bytes]:
    """Start a stage's command; what it prints is appended to its log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            preexec_fn=_end_with_parent if sys.platform.startswith("linux") else None,
        )


def _end_with_parent() -> None:
    """A stage must end when the study is killed: otherwise it would collide with the next one."""
    set_signal_at_parents_death = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGTERM)
