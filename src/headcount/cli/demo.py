"""`headcount demo`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results


def demo(
    out: Path = typer.Option(Path("demo"), "--out", help="Where the demo's run is kept."),
    corpus: str | None = typer.Option(
        None, "--corpus", help="Another corpus; `builtin` needs no network."
    ),
    minutes: float | None = typer.Option(None, "--minutes", help="Training time (default: 5)."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Fetch a small real corpus, train a model on the CPU, score it, show translations."""
    from rich.markup import escape
    from rich.table import Table

    from headcount.study.demo import demo as run_demo
    from headcount.study.demo import demo_config
    from headcount.training.display import live_display

    config = demo_config(corpus, minutes)
    if not quiet:
        remarks.print(
            f"Training on {config.data.corpus} for {config.training.minutes:g} minutes into {out}."
        )
    with live_display(config.training, remarks, quiet) as show:
        result = run_demo(out, config, StageReporter(quiet), show)
    if json:
        print_json(
            {
                "run": str(result.run.folder),
                "updates": result.updates,
                "seconds": result.seconds,
                "scores": result.scores.to_json(),
                "samples": [vars(sample) for sample in result.samples],
            }
        )
        return
    table = Table(title="Test sentences that the model has never seen", show_lines=True)
    for name in ("English", "reference", "translation"):
        table.add_column(name)
    for sample in result.samples:
        table.add_row(*map(escape, (sample.source, sample.reference, sample.translation)))
    results.print(table)
    results.print(f"Test set: {result.scores}")
    results.print(
        f"{result.updates} updates in {result.training_seconds:.0f} s of training,"
        f" {result.seconds:.0f} s in all. The model is in {result.run.folder}:"
    )
    results.print(f"  echo 'I like cats.' | headcount translate {result.run.folder}")
