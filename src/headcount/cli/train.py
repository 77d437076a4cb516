"""`headcount train`."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, speaks
from headcount.errors import Interrupted, UserError

if TYPE_CHECKING:
    from headcount.config import Config


def train(
    recipe: Path | None = typer.Argument(
        None, help="A recipe: see recipes/ for examples. With --resume the run folder is enough."
    ),
    out: Path | None = typer.Option(None, "--out", help="The run folder to write."),
    set_: list[str] = typer.Option(
        [], "--set", metavar="KEY=VALUE", help="Override a setting: --set model.layers=3."
    ),
    resume: bool = typer.Option(
        False, "--resume", help="Continue where an earlier call stopped: train --resume RUN."
    ),
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
    from headcount.cli.training_display import live_display
    from headcount.run import load_heads
    from headcount.training.metrics import tensorboard_observer
    from headcount.training.train import train as train_model

    config, out = _recipe_and_folder(recipe, out, set_, resume)
    heads = load_heads(heads_from, config.model) if heads_from else None
    reporter = StageReporter(quiet or not speaks())
    try:
        with (
            closing(reporter),
            live_display(config.training, remarks, reporter.quiet) as show,
            tensorboard_observer(out, tensorboard and speaks()) as board,
        ):

            def observe(line: dict[str, object]) -> None:
                show(line)
                board(line)

            run, progress = train_model(config, out, resume, heads, reporter, observe)
    except Interrupted as stopped:
        again = shlex.join(["headcount", "train", "--resume", str(out)])
        raise Interrupted(stopped.number, f"{stopped} Continue with: {again}") from stopped
    if not speaks():
        return
    if json:
        state = {name: value for name, value in vars(progress).items() if name != "window"}
        print_json({"run": str(run.folder), **state})
    elif not quiet:
        remarks.print(f"{run.folder}: {progress.update} updates ({progress.stopped}).")


def _recipe_and_folder(
    recipe: Path | None, out: Path | None, changes: list[str], resume: bool
) -> tuple[Config, Path]:
    """The settings and the run folder; a run that is resumed has its own recipe."""
    from headcount.config import load_recipe
    from headcount.run import CONFIG, load_config

    run = out if recipe is None else recipe if out is None else None
    if resume and run is not None and (recipe is None or not recipe.is_file()):
        load_config(run)  # explains what is wrong if it is not a run folder
        return load_recipe(run / CONFIG, changes), run
    if recipe is None:
        raise UserError("There is no recipe.", "Give one, or --resume and a run folder.")
    if out is None:
        raise UserError("There is no folder for the run.", "Name it with --out.")
    return load_recipe(recipe, changes), out
