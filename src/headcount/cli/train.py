"""`headcount train`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, speaks


def train(
    recipe: Path = typer.Argument(..., help="A recipe: see recipes/ for examples."),
    out: Path = typer.Option(..., "--out", help="The run folder to write."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a setting: --set model.layers=3."
    ),
    resume: bool = typer.Option(False, "--resume", help="Go on where an earlier call stopped."),
    heads_from: Path | None = typer.Option(
        None, "--heads-from", help="Give each layer the heads of this (pruned) run, untrained."
    ),
    tensorboard: bool = typer.Option(
        False, "--tensorboard", help="Also write TensorBoard files (extra: tensorboard)."
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Train a Transformer translation model; under torchrun on several devices or machines."""
    from headcount.config import load_recipe
    from headcount.run import load_heads
    from headcount.training.display import live_display
    from headcount.training.tensorboard import tensorboard_observer
    from headcount.training.train import train as train_model

    config = load_recipe(recipe, set_)
    heads = load_heads(heads_from, config.model) if heads_from else None
    reporter = StageReporter(quiet or not speaks())
    with (
        closing(reporter),
        live_display(config.training, remarks, reporter.quiet) as show,
        tensorboard_observer(out, tensorboard and speaks()) as board,
    ):

        def observe(line: dict[str, object]) -> None:
            show(line)
            board(line)

        run, progress = train_model(config, out, resume, heads, reporter, observe)
    if not speaks():
        return
    if progress.stopped == "interrupted":
        remarks.print(f"Stopped at update {progress.update}. Go on with --resume.")
    if json:
        print_json({"run": str(run.folder), **vars(progress)})
    elif not quiet:
        remarks.print(f"{run.folder}: {progress.update} updates ({progress.stopped}).")
