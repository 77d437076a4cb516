"""What all verbs share at the edge: where progress and results are printed."""

from __future__ import annotations

import json
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

# Progress and remarks go to standard error, results to standard output.
remarks = Console(stderr=True, highlight=False)
results = Console(highlight=False)

JSON = typer.Option(False, "--json", help="Print the result as JSON.")
QUIET = typer.Option(False, "--quiet", "-q", help="No progress, only the result.")


def print_json(value: Any) -> None:
    """A result for programs."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=1))


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A progress display that leaves the screen clean, or none."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=remarks,
        transient=True,
        disable=quiet,
    ) as progress:
        yield progress
