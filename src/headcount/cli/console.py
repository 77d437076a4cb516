"""What all verbs share at the edge: arguments that are refused, help, progress and results."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
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
from typer.core import TyperArgument, TyperCommand, TyperOption

from headcount.errors import UserError
from headcount.files import visible

LARGEST = 2**31 - 1
"""The largest whole number on the command line: beyond it libraries overflow."""


def check_arguments(words: Sequence[str]) -> None:
    """Stop if a word of the command line is empty, as after an unset shell variable."""
    for before, word in zip(("headcount", *words), words, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=")):
            raise UserError(f"The argument after {before} is empty.", "Give it a value.")


def check_values(options: Mapping[str, Any]) -> None:
    """Stop if a number is too large for any library, or not finite."""
    for name, value in options.items():
        option = f"--{name.strip('_').replace('_', '-')}"
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{option} {value} is too large.", f"At most {LARGEST}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{option} {value} is not a finite number.", "Give one that is.")
        if name == "seed" and isinstance(value, int) and value < 0:
            raise UserError(f"{option} {value} is negative.", "Seeds are 0 or more.")


def refuse_others(context: typer.Context, known: Collection[str], option: str) -> None:
    """Stop if the command line has other options, which mean nothing together with `option`."""
    names = (parameter.name or "" for parameter in context.command.params)
    refuse(context, {name for name in names if name not in known}, option)


def refuse(context: typer.Context, meaningless: Collection[str], option: str) -> None:
    """Stop if the command line has options that mean nothing together with `option`."""
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        given = source is not None and source.name == "COMMANDLINE"
        if given and parameter.name in meaningless:
            raise UserError(f"{parameter.opts[0]} means nothing with {option}.", "Leave it out.")


REGISTRIES = {
    "corpora": ("headcount.data.corpora", "corpora_help"),
    "exports": ("headcount.interop.export", "EXPORTS"),
    "devices": ("headcount.bench.estimate", "DEVICES"),
    "efficiency": ("headcount.bench.estimate", "EFFICIENCY"),
    "engines": ("headcount.bench.engines", "ENGINES"),
    "families": ("headcount.interop.families", "FAMILIES"),
    "length": ("headcount.bench.estimate", "LENGTH"),
    "link": ("headcount.bench.estimate", "LINK"),
    "measures": ("headcount.ranking.measures", "MEASURES"),
    "methods": ("headcount.pruning.methods", "METHODS"),
    "peak": ("headcount.bench.estimate", "PEAK"),
    "rules": ("headcount.ranking.lrp.rules", "RULES"),
    "roles": ("headcount.role", "ROLES"),
}


def filled(text: str) -> str:
    """A help text in which `{methods}` and its like are replaced by what that registry holds.

    A constant, such as a default that is defined elsewhere, is replaced by its value. Importing the
    registries takes seconds (they need torch), so it is done only when help is asked for, not when
    a verb is called.
    """

    def listed(match: re.Match[str]) -> str:
        module, name = REGISTRIES[match[1]]
        listing = getattr(import_module(module), name)
        if isinstance(listing, str | int | float):
            return f"{listing:g}" if isinstance(listing, float) else str(listing)
        return str(listing() if callable(listing) else listing.help())

    return re.sub(rf"\{{({'|'.join(REGISTRIES)})\}}", listed, text)


class Verb(TyperCommand):
    """A command whose help lists what is registered."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the registries before anything is printed, as they are now."""
        kinds = TyperArgument | TyperOption
        parameters = [p for p in self.params if isinstance(p, kinds) and p.help]
        texts = self.help, [p.help for p in parameters]
        self.help = filled(self.help or "")
        for parameter in parameters:
            parameter.help = filled(parameter.help or "")
        super().format_help(ctx, formatter)
        self.help = texts[0]
        for parameter, text in zip(parameters, texts[1], strict=True):
            parameter.help = text


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


LINE_SECONDS = 30.0
"""How often a long stage prints a line where there is no terminal for its bar."""


class StageReporter:
    """Shows a bar for each stage of a long task, and a line when the stage is done.

    Where there is no terminal, as in a log, a long stage prints a line now and then instead.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.stage: str | None = None
        self.said = 0.0
        self.bar: Progress | None = None

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        """Report how much of a stage is done, and of how much (None: not known)."""
        if self.quiet:
            return
        if stage != self.stage:
            self.close()
            self.stage, self.said = stage, time.monotonic()
            self.bar = _bar(disable=not remarks.is_terminal)
            self.bar.add_task(stage, total=total)
            self.bar.start()
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, total=total)
            if total is not None and done >= total:
                self.close()
                remarks.print(f"{stage}: done.")
            elif not remarks.is_terminal and time.monotonic() >= self.said + LINE_SECONDS:
                self.said = time.monotonic()
                so_far = f"{done}" if total is None else f"{done} of {total}"
                remarks.print(f"{time.strftime('%H:%M:%S')} {stage}: {so_far}", soft_wrap=True)

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
