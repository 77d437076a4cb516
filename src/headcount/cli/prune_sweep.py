"""`headcount prune-sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, results
from headcount.cli.prune import EVEN, FINETUNE, SITES, TRAIN, TRAIN_ONLY, UPDATES


def prune_sweep(
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path = typer.Option(..., "--out", help="The folder for all prunings; made if missing."),
    penalties: str = typer.Option("", "--penalties", help="Penalties: 0.003,0.01,0.03."),
    keep: str = typer.Option("", "--keep", help="Numbers of heads to keep: 4,8,16."),
    by: str = typer.Option(
        "learned",
        "--by",
        help="With --keep, how to choose: learned, lrp, confidence, ablation, gradient, random or"
        " several.",
    ),
    seeds: int = typer.Option(1, "--seeds", min=1, help="Make each with this many seeds."),
    even: bool = EVEN,
    sites: str = SITES,
    train_only: str | None = TRAIN_ONLY,
    updates: int | None = UPDATES,
    finetune: int | None = FINETUNE,
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
        [name.strip() for name in by.split(",")],
        seeds,
        even=even,
        sites=sites,
        train_only=train_only,
        updates=updates,
        finetune=finetune,
    )
    rows = sweep(run, train, out, items, jobs=jobs, report=StageReporter(quiet))
    if json:
        print_json(rows)
    elif rows:
        results.print(_table(rows))


def _table(rows: list[dict[str, Any]]) -> Any:
    """The sweep as people read it, heads by site with the number of each layer."""
    from rich.table import Table

    table = Table()
    sites = list(rows[0]["heads"])
    numbers = ("BLEU", "chrF", "dev loss", "parameters", "s/sentence")
    table.add_column("pruning")
    for name in (*sites, *numbers):
        table.add_column(name, justify="right")
    for row in rows:
        heads = [
            f"{sum(map(len, layers))} ({' '.join(str(len(layer)) for layer in layers)})"
            for layers in row["heads"].values()
        ]
        interval = "" if row["bleu_interval"] is None else f" ± {row['bleu_interval']:.2f}"
        loss = "" if row["dev_loss"] is None else f"{row['dev_loss']:.4f}"
        table.add_row(
            row["name"],
            *heads,
            f"{row['bleu']:.2f}{interval}",
            f"{row['chrf']:.2f}",
            loss,
            str(row["parameters"]),
            f"{row['seconds_per_sentence']:.4f}",
        )
    return table
