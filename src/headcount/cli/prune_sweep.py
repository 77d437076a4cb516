"""`headcount prune-sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, results, same_command
from headcount.cli.prune import (
    BATCH_TOKENS,
    EVEN,
    FINETUNE,
    FROM_SCRATCH,
    LEARNING_RATE,
    NO_FINETUNE,
    SEED,
    SITES,
    TRAIN,
    TRAIN_ONLY,
    UPDATES,
    training_updates,
)
from headcount.errors import Interrupted


def prune_sweep(
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path = typer.Option(..., "--out", help="The folder for all prunings; created if missing."),
    penalties: str = typer.Option("", "--penalties", help="Penalties: 0.003,0.01,0.03."),
    keep: str = typer.Option("", "--keep", help="Numbers of heads to keep: 4,8,16."),
    by: str | None = typer.Option(
        None,
        "--by",
        help="With --keep, one or more ways to choose; exact by default. {methods}. Also any column"
        " of numbers in the run's head table.",
    ),
    seeds: int = typer.Option(
        1, "--seeds", min=1, help="Run each with this many seeds, from --seed on."
    ),
    seed: int = SEED,
    even: bool = EVEN,
    sites: str = SITES,
    train_only: str | None = TRAIN_ONLY,
    updates: int | None = UPDATES,
    finetune: int | None = FINETUNE,
    no_finetune: bool = NO_FINETUNE,
    from_scratch: bool = FROM_SCRATCH,
    learning_rate: float = LEARNING_RATE,
    batch_tokens: int | None = BATCH_TOKENS,
    jobs: int = typer.Option(1, "--jobs", min=1, help="Processes on this machine."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Prune one run many times; resumable, one table; under torchrun spread over its ranks."""
    from headcount.pruning.sweep import parse_numbers, sweep_items
    from headcount.pruning.sweep import prune_sweep as sweep

    items = sweep_items(
        parse_numbers(penalties, float, "--penalties"),
        parse_numbers(keep, int, "--keep"),
        [name.strip() for name in by.split(",")] if by else None,
        seeds,
        even=even,
        sites=sites,
        train_only=train_only,
        updates=training_updates(updates, finetune, no_finetune),
        finetune=finetune,
        from_scratch=from_scratch,
        learning_rate=learning_rate,
        batch_tokens=batch_tokens,
        seed=seed,
    )
    try:
        rows = sweep(run, train, out, items, jobs=jobs, progress=StageReporter(quiet))
    except Interrupted as stopped:
        again = f"Stopped. Continue with: {same_command()}"
        raise Interrupted(stopped.number, again) from stopped
    if not rows:  # under torchrun one process has the table
        return
    if json:
        print_json(rows)
    else:
        results.print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> Any:
    """The sweep as a table; below the heads of a site those of each layer."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("pruning", no_wrap=True)
    numbers = ("BLEU", "chrF", "dev loss", "M params", "ms/sentence")
    for name in (*rows[0]["heads"], *numbers):
        table.add_column(f"  {name}", justify="right")
    for row in rows:
        heads = [
            f"{sum(map(len, layers))}\n  {' '.join(str(len(layer)) for layer in layers)}"
            for layers in row["heads"].values()
        ]
        table.add_row(
            row["name"],
            *heads,
            f"{row['bleu']:.2f}\n±{row['bleu_interval']:.2f}",
            f"{row['chrf']:.2f}",
            "" if row["dev_loss"] is None else f"{row['dev_loss']:.4f}",
            f"{row['parameters'] / 1e6:.2f}",
            f"{1e3 * row['seconds_per_sentence']:.1f}",
        )
    return table
