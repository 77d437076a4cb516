"""`headcount train`, and what people see while a model trains: progress, speed, time left."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headcount.cli.console import (
    JSON,
    QUIET,
    StageReporter,
    StatusLine,
    clock,
    print_json,
    remarks,
    results,
    speaks,
)
from headcount.errors import Interrupted, UserError

if TYPE_CHECKING:
    from headcount.bench.estimate import Estimate
    from headcount.config import Config, TrainingConfig


class TrainingDisplay:
    """Turns logged lines into a live table; on a dumb terminal into plain lines."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.train: dict[str, Any] = {}
        self.dev: list[dict[str, Any]] = []

    def take(self, line: dict[str, Any]) -> None:
        """One logged line."""
        if line["kind"] == "train":
            self.train = line
        else:
            self.dev.append(line)

    def share_done(self) -> float:
        """How much of the training is done: of its updates or of its time."""
        done = float(self.train["update"]) / self.config.updates
        if self.config.minutes is not None:
            done = max(done, float(self.train["seconds"]) / 60 / self.config.minutes)
        return min(done, 1.0)

    def render(self) -> RenderableType:
        """The current state."""
        if not self.train:
            return Text("Training begins ...")
        done, seconds = self.share_done(), float(self.train["seconds"])
        left = seconds * (1 - done) / done if done else 0.0
        parts: list[RenderableType] = [
            StatusLine([*self._texts(clock(left)), f"{clock(seconds)} done"], done)
        ]
        if self.dev:
            parts.append(self._dev_table())
        return Group(*parts)

    def _texts(self, left: str) -> list[str]:
        """What stands before the bar, the most important first."""
        train = self.train
        texts = [f"loss {train['loss']:.3f}", f"{train['source_tokens_per_second']:.0f} tokens/s"]
        bleu = [line["dev_bleu"] for line in self.dev if line.get("dev_bleu") is not None]
        losses = [line["dev_loss"] for line in self.dev if line.get("dev_loss") is not None]
        if bleu:
            texts.append(f"best BLEU {max(bleu):.2f}")
        elif losses:
            texts.append(f"best dev loss {min(losses):.3f}")
        texts.append(f"{left} left")
        if "open" in train:
            texts.append(f"{train['open']} heads open")
        return [*texts, f"update {train['update']}", f"epoch {train['epoch'] + 1}"]

    def _dev_table(self) -> Table:
        table = Table(title="Held-out text", title_justify="left")
        names = {
            "update": "update",
            "dev_loss": "loss",
            "dev_bleu": "BLEU (greedy)",
            "confidence_max": "most confident head",
            "positional_max": "most positional head",
            "positional_heads": "positional heads",
        }
        lines = self.dev[-8:]
        names = {
            name: title for name, title in names.items() if any(name in line for line in lines)
        }
        for title in names.values():
            table.add_column(title, justify="right")
        for line in lines:
            table.add_row(*(_cell(line.get(name)) for name in names))
        return table

    def plain(self, line: dict[str, Any]) -> str:
        """A logged line for a file or a dumb terminal."""
        shown = {k: v for k, v in line.items() if k != "kind" and not isinstance(v, list)}
        fields = "  ".join(f"{name} {_number(value)}" for name, value in shown.items())
        return f"{time.strftime('%H:%M:%S')} {line['kind']:5}  {fields}"


@contextmanager
def live_display(config: TrainingConfig, console: Console, quiet: bool) -> Iterator[Any]:
    """A function to call with each logged line; draws live on a terminal, else prints lines."""
    display = TrainingDisplay(config)
    if quiet:
        yield lambda line: None
        return
    if not console.is_terminal:

        def say(line: dict[str, Any]) -> None:
            console.print(display.plain(line), soft_wrap=True)

        yield say
        return
    # Begun with the first line: stages of preparation may show bars of their own before it.
    live = Live(console=console, refresh_per_second=4)

    def show(line: dict[str, Any]) -> None:
        display.take(line)
        live.start()
        live.update(display.render())

    try:
        yield show
    finally:
        live.stop()


def _cell(value: Any) -> str:
    """A number of the table: losses, BLEU and shares with as many decimals in every line."""
    return f"{value:.3f}" if isinstance(value, float) else _number(value)


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


ESTIMATE = "For --estimate"


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
    start_from: Path | None = typer.Option(
        None,
        "--start-from",
        help="Begin with the weights and tokenizers of this run; without its decoder where the"
        " recipe has another one or another target language.",
    ),
    tensorboard: bool = typer.Option(
        False, "--tensorboard", help="Also write TensorBoard files (extra: tensorboard)."
    ),
    estimate: bool = typer.Option(
        False,
        "--estimate",
        help="Only print the hours, memory and traffic it would take; needs no text and no GPU.",
        rich_help_panel=ESTIMATE,
    ),
    devices: str | None = typer.Option(
        None,
        "--devices",
        help="Numbers of devices. Default: {devices}.",
        rich_help_panel=ESTIMATE,
    ),
    peak: float | None = typer.Option(
        None,
        "--peak",
        help="TFLOPS of a device. Default: {peak}, bf16 of an A100, from its data sheet.",
        rich_help_panel=ESTIMATE,
    ),
    efficiency: float | None = typer.Option(
        None,
        "--efficiency",
        help="Share of the peak that is reached. Default: {efficiency}, that of Vaswani et al."
        " (2017).",
        rich_help_panel=ESTIMATE,
    ),
    link: float | None = typer.Option(
        None,
        "--link",
        help="GB/s from device to device. Default: {link}, 100 Gbit/s between machines.",
        rich_help_panel=ESTIMATE,
    ),
    length: int | None = typer.Option(
        None,
        "--length",
        min=1,
        help="Tokens of a sentence. Default: {length}.",
        rich_help_panel=ESTIMATE,
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Train a Transformer translation model; under torchrun on several devices or machines."""
    if estimate:
        machines = {"devices": devices, "peak": peak, "efficiency": efficiency, "link": link}
        _estimate(recipe, set_, machines, length, json)
        return
    from headcount.run import load_config, load_heads
    from headcount.training.metrics import tensorboard_observer
    from headcount.training.train import train as train_model

    config, out = _recipe_and_folder(recipe, out, set_, resume)
    heads = None
    if heads_from:
        blocks = {"ff_block": load_config(heads_from).model.ff_block}
        config = config.model_copy(update={"model": config.model.model_copy(update=blocks)})
        heads = load_heads(heads_from, config.model)
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

            run, progress = train_model(
                config, out, resume, heads, reporter, observe, start_from=start_from
            )
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


def _estimate(
    recipe: Path | None,
    changes: list[str],
    machines: dict[str, Any],
    length: int | None,
    as_json: bool,
) -> None:
    from headcount.bench.estimate import Machines, estimate
    from headcount.config import load_recipe
    from headcount.training.preparation import check_corpora

    if recipe is None:
        raise UserError("There is no recipe.", "Name the one to estimate.")
    chosen = Machines(**{name: value for name, value in machines.items() if value is not None})
    config = load_recipe(recipe, changes)
    check_corpora(config.data)
    found = estimate(config, chosen, length)
    if as_json:
        print_json(found.to_json())
        return
    results.print(_estimate_table(found))
    results.print(
        f"{found.parameters / 1e6:.1f} million parameters,"
        f" {found.flops_per_source_token / 1e6:.0f} MFLOPs per source token"
        f" ({found.length} tokens per sentence), {found.precision}; at {found.peak_tflops:g} TFLOPS"
        f" (--peak) x {found.efficiency:g} per device and {found.link_gigabytes:g} GB/s between"
        " them. docs/scaling.md has the formula.",
        soft_wrap=True,
    )


def _estimate_table(found: Estimate) -> Table:
    from rich.table import Table

    limit = "" if found.minutes is None else f", or {found.minutes:g} minutes if these end first"
    table = Table(title=f"{found.updates:,} updates{limit}", title_justify="left")
    titles = ("devices", "time", "s per update", "memory", "sent per update", "micro-batch")
    for title in titles:
        table.add_column(title, justify="right")
    for row in found.rows:
        table.add_row(
            str(row.devices),
            _duration(row.hours),
            f"{row.seconds_per_update:.2g}",
            f"{row.memory_bytes / 1e9:.1f} GB",
            f"{row.bytes_sent_per_update / 1e6:.0f} MB",
            f"{row.device_tokens} tokens",
        )
    return table


def _duration(hours: float) -> str:
    """Hours, or minutes or seconds where it is less."""
    for unit, size in (("h", 1.0), ("min", 60.0)):
        if hours * size >= 1:
            return f"{hours * size:.1f} {unit}"
    return f"{hours * 3600:.2g} s"


def _recipe_and_folder(
    recipe: Path | None, out: Path | None, changes: list[str], resume: bool
) -> tuple[Config, Path]:
    """The settings and the run folder; a run that is resumed has its own recipe."""
    from headcount.config import load_recipe
    from headcount.run import CONFIG, load_config, resolve_run

    run = out if recipe is None else recipe if out is None else None
    if resume and run is not None and (recipe is None or not recipe.is_file()):
        load_config(run)  # explains what is wrong if it is not a run folder
        if resolve_run(run) != run:
            raise UserError(
                f"{run} is the model that comes with headcount, which is only read.",
                "To train it further, give a recipe, --start-from demo and --out.",
            )
        return load_recipe(run / CONFIG, changes), run
    if recipe is None:
        raise UserError("There is no recipe.", "Give one, or --resume and a run folder.")
    if out is None:
        raise UserError("There is no folder for the run.", "Name it with --out.")
    return load_recipe(recipe, changes), out
