"""The stages of a study: a command each, what it needs, whether it is done; and running them.

A stage is done when its stamp carries the hash of all its inputs (the command itself, the files
it names and the hashes of the stages it needs) and its results are complete. So nothing is ever
repeated, a change in a recipe repeats exactly what depends on it, and a training that was cut short
is never taken for a finished one.
"""

from __future__ import annotations

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
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from headcount import __version__
from headcount.errors import UserError
from headcount.files import read_json, write_json
from headcount.processes import end_command_with_parent, threads_for
from headcount.pruning.record import is_finished
from headcount.study.results import STAGES
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
        return self.folder / STAGES / f"{name.replace('/', '--')}.log"

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
        return self.folder / STAGES / f"{name.replace('/', '--')}.json"

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
            # A stage that outlived its study would collide with the next one.
            preexec_fn=end_command_with_parent if sys.platform.startswith("linux") else None,
        )


POLL_SECONDS = 0.2


@dataclass
class Running:
    """A running stage."""

    name: str
    process: subprocess.Popen[bytes]
    began: float = field(default_factory=time.monotonic)


def choose(book: Book, only: Iterable[str] = (), until: str | None = None) -> list[str]:
    """The stages asked for, with all that they need, in order.

    `only` are names or patterns (`en-fr/*`, `*/rank`); `until` is the last stage to be run.
    """
    patterns = list(only) + ([until] if until else [])
    if not patterns:
        return list(book.stages)
    wanted: set[str] = set()
    for pattern in patterns:
        matching = [name for name in book.stages if fnmatch(name, pattern) or name == pattern]
        if not matching:
            raise UserError(
                f"No stage is called '{pattern}'.", "`headcount study --dry-run` lists them."
            )
        wanted.update(matching)
    for name in reversed(list(book.stages)):
        if name in wanted:
            wanted.update(book.stages[name].needs)
    return [name for name in book.stages if name in wanted]


class Runner:
    """Runs chosen stages with up to `jobs` at a time."""

    def __init__(self, book: Book, chosen: list[str], jobs: int = 1) -> None:
        self.book, self.chosen, self.jobs = book, chosen, jobs
        self.running: list[Running] = []
        self.finished = {name for name in chosen if book.done(name)}
        self.threads = threads_for(jobs)

    def run(self, draw: Callable[[], None] = lambda: None) -> None:
        """Run until all chosen stages are done; a failed stage stops the study with its reason."""
        try:
            while len(self.finished) < len(self.chosen):
                self._start_ready()
                self._collect()
                draw()
                time.sleep(POLL_SECONDS)
            draw()
        finally:
            self._stop()

    def seconds_left(self) -> float:
        """A rough estimate of the time left, for this many stages side by side."""
        total = 0.0
        for name in self.chosen:
            if name in self.finished:
                continue
            spent = next((time.monotonic() - r.began for r in self.running if r.name == name), 0.0)
            total += max(0.0, self.book.estimate(name) - spent)
        return total / self.jobs

    def _start_ready(self) -> None:
        under_way = {running.name for running in self.running}
        for name in self.chosen:
            if len(self.running) >= self.jobs:
                return
            if name in self.finished or name in under_way:
                continue
            if all(need in self.finished for need in self.book.stages[name].needs):
                command = self.book.begin(name)
                process = start(command, self.book.log_path(name), self.threads)
                self.running.append(Running(name, process))

    def _collect(self) -> None:
        for running in list(self.running):
            code = running.process.poll()
            if code is None:
                continue
            self.running.remove(running)
            if code != 0 or not self.book.stages[running.name].complete():
                self.book.pause(running.name)
                raise self._failure(running.name, code)
            self.book.end(running.name)
            self.finished.add(running.name)

    def _failure(self, name: str, code: int) -> UserError:
        """Why a stage is not done; `code` is what its process ended with."""
        log = self.book.log_path(name)
        stopped_by = -code if code < 0 else code - 128  # a signal, as Popen and as shells say it
        if code == 0:
            what = "ended before its work was complete"
        elif 0 < stopped_by < signal.NSIG:
            what = f"was interrupted ({_signal_name(stopped_by)})"
        else:
            return UserError(
                f"Stage {name} failed: {_last_line(log.read_text(errors='replace'))}",
                f"See {log}; the same command continues from here.",
            )
        return UserError(
            f"Stage {name} {what}.", f"The same command continues from here; see {log}."
        )

    def _stop(self) -> None:
        """Ask running stages to save and end."""
        for running in self.running:
            running.process.send_signal(signal.SIGTERM)
        for running in self.running:
            try:
                running.process.wait(30)
            except subprocess.TimeoutExpired:
                running.process.kill()
            self.book.pause(running.name)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    said = lines[-1] if lines else "no output."
    # A verb begins with the first; modules of a study, which end with a traceback, with the second.
    return said.removeprefix("headcount: ").removeprefix(f"{UserError.__module__}.UserError: ")
