"""Running a study's stages: finished ones are skipped, killed ones resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch

from headcount.errors import UserError
from headcount.study.stages import Book, start

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
        self.threads = max(1, (os.cpu_count() or 1) // jobs)

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
    return lines[-1].removeprefix("headcount: ") if lines else "no output."
