"""The plan of a study as people see it: what is done, what is running, how long it will take."""

from __future__ import annotations

import time

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headcount.cli.console import StatusLine, clock
from headcount.study.runner import Runner
from headcount.study.stages import Book


def plan_table(book: Book, chosen: list[str]) -> Table:
    """Every stage with its state and an estimate of its time."""
    table = Table(title="Plan", title_justify="left")
    for title in ("stage", "kind", "state", "time"):
        table.add_column(title, justify="right" if title == "time" else "left")
    for name in chosen:
        done = book.done(name)
        seconds = book.stamp(name)["seconds"] if done else book.estimate(name)
        shown = clock(seconds) if done else f"about {clock(seconds)}"
        table.add_row(name, book.stages[name].kind, "done" if done else "to do", shown)
    return table


def live_view(runner: Runner) -> RenderableType:
    """One line for what is running, and how much is done."""
    done, total = len(runner.finished), len(runner.chosen)
    texts = [f"{done} of {total} stages done", f"about {clock(runner.seconds_left())} left"]
    lines: list[RenderableType] = [StatusLine(texts, done / max(1, total))]
    for running in runner.running:
        spent = time.monotonic() - running.began
        expected = runner.book.estimate(running.name)
        lines.append(Text(f"  {running.name}: {clock(spent)} of about {clock(expected)}"))
    return Group(*lines)
