"""`headcount export`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results

COMPARED_LINES = 200


def export(
    run: Path = typer.Argument(..., help="A run folder."),
    to: str = typer.Option(..., "--to", help="{exports}"),
    out: Path = typer.Option(..., "--out", help="The folder to write."),
    precision: str = typer.Option(
        "float32", "--precision", help="Of the weights; ctranslate2 has int8 and others too."
    ),
    src: Path | None = typer.Option(
        None,
        "--src",
        help=f"Sentences to compare the export with the run on (the first {COMPARED_LINES}),"
        " besides random ones.",
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Write a run for another engine, load it there and compare it with the run."""
    from headcount.files import read_lines
    from headcount.interop.export import export as export_run

    lines = list(islice(read_lines(src), COMPARED_LINES)) if src else []
    exported = export_run(
        run, to, out, precision=precision, lines=lines, progress=StageReporter(quiet)
    )
    if json:
        print_json(exported.to_json())
        return
    if exported.padded_heads and not quiet:
        remarks.print(
            f"{to} has the same number of heads in every layer. Heads of zeros added, which cost"
            f" time and space: {exported.padded_heads}. `headcount prune --keep K --even` prunes so"
            " that ctranslate2 needs none.",
            soft_wrap=True,
        )
    for note in exported.notes if not quiet else ():
        remarks.print(f"Note: {note}.", soft_wrap=True)
    what = "mean" if precision != "float32" else "largest"
    results.print(
        f"{out}: {exported.bytes / 1e6:.1f} MB, loaded and compared ({what} difference"
        f" {exported.difference:.1e}).",
        soft_wrap=True,
    )
