"""`headcount explore`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import QUIET, StageReporter, remarks


def explore(
    runs: list[str] = typer.Argument(
        ["demo"], help="Runs to look at; two can be compared side by side."
    ),
    src: Path | None = typer.Option(None, "--src", help="Sentences to pick from, one per line."),
    host: str = typer.Option(
        "127.0.0.1",
        "--host",
        help="The address to listen at. Other machines can reach it unless it is the default,"
        " but only with the token in the printed address.",
    ),
    port: int = typer.Option(8765, "--port", help="0 takes any free port."),
    browser: bool = typer.Option(True, help="Open the page in the browser."),
    quiet: bool = QUIET,
) -> None:
    """Open a page to type sentences, look at heads and switch them off."""
    from headcount.explore.explore import explore as explore_runs

    explore_runs(
        runs,
        src=src,
        host=host,
        port=port,
        browser=browser,
        progress=StageReporter(quiet),
        started=lambda address: remarks.print(
            f"The page is at {address} (Ctrl-C ends it).", soft_wrap=True
        ),
    )
