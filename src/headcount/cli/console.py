"""What all verbs share at the edge: where progress and results are printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table

from headcount.files import visible

FILE_WIDTH = 200
"""Width of output that is not a terminal: tables in a file or a pipe must not be truncated."""

SHORTEST_BAR = 8


def _width() -> int | None:
    return None if sys.stdout.isatty() or "COLUMNS" in os.environ else FILE_WIDTH


class SafeConsole(Console):
    """A console on which text from files cannot send control sequences to the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """As rich does it, with control characters made visible."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


# Progress and remarks go to standard error, results to standard output. Text is shown as it is:
# square brackets in a path or a sentence are not markup.
remarks = SafeConsole(stderr=True, highlight=False, markup=False)
results = SafeConsole(highlight=False, markup=False, width=_width())

JSON = typer.Option(False, "--json", help="Print the result as JSON.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress, only the result.")


def speaks() -> bool:
    """Whether this process prints: under torchrun only one does."""
    return os.environ.get("RANK", "0") == "0"


def print_json(value: Any) -> None:
    """A result for programs."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    # JSON escapes control characters except for these, which control some terminals.
    typer.echo(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))


def same_command(*options: str) -> str:
    """The command as it was called, with these options besides."""
    arguments = sys.argv[1:]
    return shlex.join(["headcount", *arguments, *(o for o in options if o not in arguments)])


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A progress display that leaves the screen clean, or none."""
    with _bar(disable=quiet or not remarks.is_terminal) as progress:
        yield progress


class StageReporter:
    """Shows a bar for each stage of a long task, and a line when the stage is done."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.stage: str | None = None
        self.bar: Progress | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report how much of a stage is done, and of how much (None: not known)."""
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
        """Remove the bar from the screen; a second call for the same stage does nothing."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _bar(disable: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        BarColumn(bar_width=None),  # the rest of the terminal's width
        console=remarks,
        expand=True,
        transient=True,
        disable=disable,
    )


class StatusLine:
    """The progress of a task in one line of the terminal.

    As many texts as fit, the most important first; the bar takes the rest.
    """

    def __init__(self, texts: Sequence[str], share: float) -> None:
        self.texts, self.share = texts, share

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = ""
        for text in self.texts:
            if len(line) + len(text) + 2 > options.max_width - SHORTEST_BAR and line:
                break
            line += f"{text}  "
        row = Table.grid(expand=True)
        row.add_column(no_wrap=True, overflow="ellipsis")
        row.add_column(ratio=1)
        row.add_row(line, ProgressBar(total=1.0, completed=self.share))
        yield row


def clock(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
