"""What all verbs share at the edge: where progress and results are printed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

FILE_WIDTH = 200
"""Columns where nobody looks: a table in a file or a pipe must not lose letters to a screen."""


def _width() -> int | None:
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_WIDTH


# Progress and remarks go to standard error, results to standard output. Text is shown as it is:
# square brackets in a path or a sentence are no markup.
remarks = Console(stderr=True, highlight=False, markup=False)
results = Console(highlight=False, markup=False, width=_width())

JSON = typer.Option(False, "--json", help="Print the result as JSON.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress, only the result.")


def speaks() -> bool:
    """Whether this process prints: under torchrun one speaks for all."""
    return os.environ.get("RANK", "0") == "0"


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A progress display that leaves the screen clean, or none."""
    with _bar(disable=quiet or not remarks.is_terminal) as progress:
        yield progress


class StageReporter:
    """Shows one bar for each stage of a longer work, and a line when the stage is done."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.stage: str | None = None
        self.bar: Progress | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Stage `stage` has done so much of so much (None: not known)."""
        if self.quiet:
            return
        if stage != self.stage:
            self.close()
            self.stage = stage
            self.bar = _bar(disable=not remarks.is_terminal)
            self.bar.add_task(stage, total=total)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=total)
            if total is not None and done >= total:
                self.close()
                remarks.print(f"{stage}: done.")

    def close(self) -> None:
        """Take the bar off the screen; called again for the same stage, nothing happens."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _bar(disable: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=remarks,
        transient=True,
        disable=disable,
    )
