"""`headcount prune` and `headcount prune-sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headcount.cli.console import (
    JSON,
    QUIET,
    StageReporter,
    print_json,
    remarks,
    results,
    same_command,
    speaks,
)
from headcount.errors import Interrupted, UserError

if TYPE_CHECKING:
    from headcount.run import Run

TRAIN = typer.Option(..., "--train", help="A corpus folder of the run's languages.")
SITES = typer.Option(
    None,
    "--sites",
    help="What is pruned: heads of enc, dec, cross; units of feed-forward networks, enc_ff, dec_ff;"
    " whole blocks, enc_layers, dec_layers; or several. Default: those of --keep, else enc.",
)
FF_BLOCK = typer.Option(
    None, "--ff-block", min=1, help="Units that are pruned together. Default: as the run has it."
)
TRAIN_ONLY = typer.Option(
    None,
    "--train-only",
    help="Which weights may change: encoder; decoder; encoder,decoder; gates (none). Default: the"
    " side whose heads are pruned.",
)
EVEN = typer.Option(False, "--even", help="With --keep: the same number in each layer of a site.")
UPDATES = typer.Option(None, "--updates", help="At most this many updates in all.")
FINETUNE = typer.Option(
    None, "--finetune", help="The last of them, with heads held fixed. Default: a third."
)
FROM_SCRATCH = typer.Option(
    False, "--from-scratch", help="Begin with random weights instead of the run's."
)
NO_FINETUNE = typer.Option(
    False, "--no-finetune", help="Where heads are ranked: mask and remove, no training."
)
LEARNING_RATE = typer.Option(5e-4, "--learning-rate", help="Of the weights.")
BATCH_TOKENS = typer.Option(
    None, "--batch-tokens", help="Source tokens per update. Default: as the run was trained."
)
SEED = typer.Option(1, "--seed", help="Of noise, batches and random scores.")


def prune(
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path | None = typer.Option(None, "--out", help="The run folder to write."),
    plan: bool = typer.Option(
        False,
        "--plan",
        help="Only print what keeping --keep at --sites would give, and at most could: parameters,"
        " multiply-adds, predicted time.",
    ),
    penalty: float | None = typer.Option(
        None,
        "--penalty",
        help="What each open head (block of units, block) costs, in nats per target token.",
    ),
    keep: str | None = typer.Option(
        None,
        "--keep",
        help="Keep exactly this many heads; at several sites: enc=12,enc_ff=40.",
    ),
    speedup: float | None = typer.Option(
        None, "--speedup", help="Prune until a translation is this many times as fast: 1.5."
    ),
    engine: str | None = typer.Option(
        None, "--engine", help="Where --speedup is measured. Default: headcount. {engines}."
    ),
    batch: int | None = typer.Option(
        None, "--batch", min=1, help="With how many sentences at a time. Default: 1."
    ),
    by: str | None = typer.Option(
        None,
        "--by",
        help="How heads are chosen. Default: gates with --penalty, exact with --keep, timed with"
        " --speedup. {methods}."
        " With --keep also any column of numbers in the run's head table.",
    ),
    even: bool = EVEN,
    sites: str | None = SITES,
    ff_block: int | None = FF_BLOCK,
    train_only: str | None = TRAIN_ONLY,
    from_scratch: bool = FROM_SCRATCH,
    updates: int | None = UPDATES,
    finetune: int | None = FINETUNE,
    no_finetune: bool = NO_FINETUNE,
    steps: int = typer.Option(
        4, "--steps", help="Where heads are ranked: the number of steps in which they are masked."
    ),
    learning_rate: float = LEARNING_RATE,
    gate_learning_rate: float | None = typer.Option(
        None, "--gate-learning-rate", help="Of the gates. Default: 0.05, with --keep 0.1."
    ),
    warmup: int | None = typer.Option(
        None, "--warmup", help="Updates until the penalty has its full weight."
    ),
    batch_tokens: int | None = BATCH_TOKENS,
    distil: float | None = typer.Option(
        None,
        "--distil",
        help="Also learn a teacher's distributions: their share of the target, 0 to 1. Default with"
        " a teacher: 0.5, else none.",
    ),
    teacher: Path | None = typer.Option(
        None, "--teacher", help="A run with the same vocabulary. Default: the run to prune."
    ),
    distil_states: float | None = typer.Option(
        None, "--distil-states", help="Also learn its encoder states: weight of their difference."
    ),
    minutes: float | None = typer.Option(None, "--minutes", help="Stop training after this time."),
    seed: int = SEED,
    resume: bool = typer.Option(False, "--resume", help="Continue where an earlier call stopped."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Prune attention heads: learn which ones to keep, or go by a score; then remove the rest."""
    from headcount.cli.train import live_display
    from headcount.pruning.prune import prune as prune_run
    from headcount.pruning.record import read_record, remarks_on
    from headcount.pruning.settings import make_settings
    from headcount.run import load_config, resolve_run

    if plan:
        _print_plan(run, train, keep, sites, ff_block, engine, batch, json, quiet)
        return
    if out is None:
        raise UserError("There is no folder for the pruned run.", "Name it with --out.")
    settings = make_settings(
        penalty=penalty,
        keep=keep,
        speedup=speedup,
        engine=engine,
        batch=batch,
        by=by,
        even=even,
        sites=sites,
        ff_block=ff_block,
        train_only=train_only,
        from_scratch=from_scratch,
        updates=training_updates(updates, finetune, no_finetune),
        finetune=finetune,
        steps=steps,
        learning_rate=learning_rate,
        gate_learning_rate=gate_learning_rate,
        warmup=warmup,
        batch_tokens=batch_tokens,
        distil=distil,
        teacher=teacher,
        distil_states=distil_states,
        minutes=minutes,
        seed=seed,
    )
    config = load_config(resolve_run(run))
    training = settings.resolved(config).training(config.training, resolve_run(run))
    silent = quiet or not speaks()
    try:
        with live_display(training, remarks, silent) as observe:
            pruned = prune_run(
                run,
                train,
                out,
                settings,
                resume=resume,
                progress=StageReporter(silent),
                observe=observe,
            )
    except Interrupted as stopped:
        again = f"{stopped} Continue with: {same_command('--resume')}"
        raise Interrupted(stopped.number, again) from stopped
    if not speaks():
        return
    record = read_record(out)
    if json:
        print_json({"run": str(out), **record, "warnings": remarks_on(record)})
        return
    results.print(_summary(pruned, record), soft_wrap=True)


def _print_plan(
    run: Path,
    train: Path,
    keep: str | None,
    sites: str | None,
    ff_block: int | None,
    engine: str | None,
    batch: int | None,
    json: bool,
    quiet: bool,
) -> None:
    """The table of `--plan`."""
    from headcount.pruning.plan import make_plan

    costs, rows = make_plan(
        run, train, keep, sites, ff_block, engine, batch, progress=StageReporter(quiet)
    )
    if json:
        print_json({"costs": costs.to_json(), "sites": [row.to_json() for row in rows]})
        return
    from rich.table import Table

    table = Table(title=str(run), title_justify="left")
    table.add_column("")
    for name in ("have", "keep", "parameters", "multiply-adds", "speed", "at most", "by counts"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.site,
            str(row.have),
            "" if row.keep is None else str(row.keep),
            *(
                "" if row.keep is None else f"{-share:.1%}"
                for share in (row.parameters, row.products)
            ),
            "" if row.keep is None else f"{row.speedup:.2f}x",
            f"{row.ceiling:.2f}x",
            f"{row.product_ceiling:.2f}x",
        )
    results.print(table)
    results.print(
        f"{costs.engine}, batch {costs.batch}, beam {costs.beam}: {1e3 * costs.full:.2f} ms per"
        f" sentence now; predictions of half of everything are {costs.error:+.0%} off. At most: if"
        " all of it went, predicted, and if only multiply-adds counted.",
        soft_wrap=True,
    )


def training_updates(updates: int | None, finetune: int | None, no_finetune: bool) -> int | None:
    """The number of updates that the options ask for."""
    if not no_finetune:
        return updates
    if updates or finetune:
        raise UserError("--no-finetune leaves no updates to make.", "Give one or the other.")
    return 0


def _summary(run: Run, record: dict[str, Any]) -> str:
    """The result in a few lines: the heads that are left, quality, size."""
    from headcount.heads import SITES as ATTENTION
    from headcount.heads import kinds_at
    from headcount.pruning.record import quality

    full, sites = record["baseline"]["heads"], record["settings"]["sites"]
    lines = [f"{run.folder}: {kinds_at(sites)} left"]
    for site, layers in record["heads"].items():
        if not layers or site not in (*ATTENTION, *sites):
            continue
        lines.append(f"{site:6}  {sum(map(len, layers))} of {sum(map(len, full[site]))}")
        if site in sites:
            lines += [
                f"  layer {number}: {_left(run, site, indices)}"
                for number, indices in enumerate(layers)
            ]
    for name in ("before", "after"):
        if name in record:
            lines.append(f"{name:6}  {quality(record[name])}")
    if record.get("speed"):
        speed = record["speed"]
        lines.append(
            f"speed   {speed['measured']:.2f} times as fast (asked for {speed['asked']:g}, promised"
            f" {speed['promised']:.2f}): {speed['engine']}, batch {speed['batch']},"
            f" beam {speed['beam']}"
        )
    before, after = record["baseline"]["parameters"], record["parameters"]
    lines.append(f"{after} parameters, {1 - after / before:.1%} fewer")
    return "\n".join(lines)


def _left(run: Run, site: str, indices: list[int]) -> str:
    """What a layer has left: heads by number, blocks by name, units by how many they are."""
    from headcount.heads import BLOCKS, UNIT_SITES

    if site in UNIT_SITES:
        config = run.config.model
        units = sum(len(config.units_of(site, index)) for index in indices)
        return f"{len(indices)} blocks, {units} of {config.ff_width_at(site)} units"
    names = [BLOCKS[site][i] for i in indices] if site in BLOCKS else map(str, indices)
    return " ".join(names) or "none"


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
    sites: str | None = SITES,
    ff_block: int | None = FF_BLOCK,
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
        ff_block=ff_block,
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

    from headcount.pruning.sweep import pruned_sites

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("pruning", no_wrap=True)
    numbers = ("BLEU", "chrF", "dev loss", "M params", "ms/sentence")
    sites = pruned_sites(rows)
    for name in (*sites, *numbers):
        table.add_column(f"  {name}", justify="right")
    for row in rows:
        heads = [
            f"{sum(map(len, layers))}\n  {' '.join(str(len(layer)) for layer in layers)}"
            for layers in (row["heads"][site] for site in sites)
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
