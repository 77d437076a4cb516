"""`headcount prune-sweep`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import (
    JSON,
    QUIET,
    StageReporter,
    print_json,
    refuse,
    results,
    same_command,
)
from headcount.cli.prune import (
    BATCH,
    BATCH_TOKENS,
    DISTIL,
    ENGINE,
    EVEN,
    FF_BLOCK,
    FINETUNE,
    FROM_SCRATCH,
    LEARNING_RATE,
    NO_FINETUNE,
    PRECISION,
    SEED,
    SITES,
    TRAIN,
    TRAIN_ONLY,
    TRAINING,
    UPDATES,
    training_updates,
)
from headcount.cli.prune_display import sweep_table
from headcount.errors import Interrupted


def prune_sweep(
    context: typer.Context,
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path = typer.Option(..., "--out", help="The folder for all prunings; created if missing."),
    penalties: str = typer.Option("", "--penalties", help="Penalties: 0.003,0.01,0.03."),
    keep: str = typer.Option(
        "",
        "--keep",
        help="Numbers of heads to keep: 4,8,16; at several sites:"
        " 'enc=12,enc_ff=48; enc=6,enc_ff=24'.",
    ),
    speedups: str = typer.Option(
        "", "--speedups", help="How many times as fast models are to be: 1.25,1.5,2."
    ),
    engine: str | None = ENGINE,
    batch: int | None = BATCH,
    by: str | None = typer.Option(
        None,
        "--by",
        help="With --keep and --speedups, one or more ways to choose; exact and timed by default."
        " {methods}. With --keep also any column of numbers in the run's head table.",
    ),
    seeds: int = typer.Option(
        1, "--seeds", min=1, help="Run each with this many seeds, from --seed on."
    ),
    seed: int = SEED,
    even: bool = EVEN,
    sites: str | None = SITES,
    ff_block: int | None = FF_BLOCK,
    train_only: str | None = TRAIN_ONLY,
    updates: int | None = UPDATES,
    finetune: int | None = FINETUNE,
    no_finetune: bool = NO_FINETUNE,
    from_scratch: bool = FROM_SCRATCH,
    learning_rate: float = LEARNING_RATE,
    batch_tokens: int | None = BATCH_TOKENS,
    precision: str | None = PRECISION,
    distil: float | None = DISTIL,
    jobs: int = typer.Option(1, "--jobs", min=1, help="Processes on this machine."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Prune one run many times; resumable, one table; under torchrun spread over its ranks."""
    from headcount.pruning.sweep import parse_keeps, parse_numbers, sweep_items
    from headcount.pruning.sweep import prune_sweep as sweep

    if no_finetune:
        refuse(context, TRAINING, "--no-finetune")
    items = sweep_items(
        parse_numbers(penalties, float, "--penalties"),
        parse_keeps(keep),
        [name.strip() for name in by.split(",")] if by else None,
        seeds,
        parse_numbers(speedups, float, "--speedups"),
        engine,
        batch,
        even=even,
        sites=sites,
        ff_block=ff_block,
        train_only=train_only,
        updates=training_updates(updates, finetune, no_finetune),
        finetune=finetune,
        from_scratch=from_scratch,
        learning_rate=learning_rate,
        batch_tokens=batch_tokens,
        precision=precision,
        distil=distil,
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
        results.print(sweep_table(rows))
