"""`headcount report`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, results


def report(
    folder: Path = typer.Argument(..., help="The folder of a study, or of one run."),
    out: Path | None = typer.Option(
        None, "--out", help="The page to write (default: report.html in the folder)."
    ),
    src: Path | None = typer.Option(
        None, "--src", help="Sentences for the explorer (default: the study's own test set)."
    ),
    sentences: int = typer.Option(
        100,
        "--sentences",
        min=1,
        help="How many of them at most; fewer if the page would become too large.",
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Check claims, draw figures and tables, and write one self-contained HTML page."""
    from headcount.study.claims.verdict import HOLDS
    from headcount.study.report import write_report
    from headcount.study.report.story import claims_line

    reporter = StageReporter(quiet)
    try:
        written = write_report(folder, out=out, source=src, sentences=sentences, progress=reporter)
    finally:
        reporter.close()
    if json:
        print_json(
            {
                "page": str(written.page),
                "bytes": written.bytes,
                "figures": [figure.name for figure in written.figures],
                "tables": [table.name for table in written.tables],
                "sentences": written.sentences,
                "claims": {v.claim.id: v.verdict for v in written.verdicts},
                "holds": sum(v.verdict == HOLDS for v in written.verdicts),
            }
        )
        return
    results.print(f"{written.page}: {written.bytes / 1e6:.1f} MB, open it in a browser.")
    results.print(f"{len(written.figures)} figures, {len(written.tables)} tables.")
    results.print(claims_line(written.verdicts), soft_wrap=True)
