"""`headcount prune`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import (
    JSON,
    QUIET,
    StageReporter,
    print_json,
    refuse,
    refuse_others,
    remarks,
    results,
    same_command,
    speaks,
)
from headcount.cli.prune_display import plan_lines, plan_table, summary
from headcount.errors import Interrupted, UserError

TRAIN = typer.Option(..., "--train", help="A corpus folder of the run's languages.")
SITES = typer.Option(
    None,
    "--sites",
    help="What is pruned: heads of enc, dec, cross; units of feed-forward networks, enc_ff, dec_ff;"
    " whole blocks, enc_layers, dec_layers; or several. Default: those of --keep; with --speedup"
    " all that the run has; else enc.",
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
EVEN = typer.Option(
    False,
    "--even",
    help="With --keep: the same number in each layer of a site. Sites may still differ:"
    " dec=4,cross=8.",
)
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
PRECISION = typer.Option(
    None,
    "--precision",
    help="While training: float32, bf16, auto. Default: as the run was trained.",
)
ENGINE = typer.Option(
    None, "--engine", help="Where a speed-up is measured. Default: headcount. {engines}."
)
BATCH = typer.Option(None, "--batch", min=1, help="With how many sentences at a time. Default: 1.")
DISTIL = typer.Option(
    None,
    "--distil",
    help="Also learn a teacher's distributions: their share of the target, 0 to 1. Default with a"
    " teacher: 0.5, else none.",
)
SEED = typer.Option(1, "--seed", help="Of noise, batches and random scores.")


PLANNED = (
    *("run", "train", "plan", "keep", "even", "speedup", "engine", "batch"),
    *("sites", "ff_block", "json", "quiet"),
)
"""What `--plan` looks at; any other option is about a pruning that will not take place."""

TRAINING = (
    *("train_only", "steps", "learning_rate", "gate_learning_rate", "warmup", "batch_tokens"),
    *("precision", "distil", "teacher", "distil_states", "minutes"),
)
"""What says how a pruning trains, besides how long."""


def prune(
    context: typer.Context,
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path | None = typer.Option(None, "--out", help="The run folder to write."),
    plan: bool = typer.Option(
        False,
        "--plan",
        help="Only print what keeping --keep at --sites would give, and at most could: parameters,"
        " multiply-adds, predicted time; with --speedup whether it can be reached. Times models for"
        " a minute or two first, longer on a busy machine.",
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
        None,
        "--speedup",
        help="Prune until a translation is this many times as fast: 1.5. Begins with a minute or"
        " two of timing, more on a busy machine.",
    ),
    engine: str | None = ENGINE,
    batch: int | None = BATCH,
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
    precision: str | None = PRECISION,
    distil: float | None = DISTIL,
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
    given = locals()  # the options, before anything else has a name here
    from headcount.cli.train import live_display
    from headcount.pruning.plan import make_plan
    from headcount.pruning.prune import prune as prune_run
    from headcount.pruning.record import read_record, remarks_on
    from headcount.pruning.settings import PruneSettings, make_settings
    from headcount.run import load_config, resolve_run

    if plan:
        refuse_others(context, PLANNED, "--plan")
        planned = make_plan(
            run, train, keep, sites, ff_block, engine, batch,
            speedup=speedup, even=even, progress=StageReporter(quiet),
        )  # fmt: skip
        if json:
            print_json(planned.to_json())
            return
        results.print(plan_table(planned, str(run)))
        results.print(plan_lines(planned))
        return
    if out is None:
        raise UserError("There is no folder for the pruned run.", "Name it with --out.")
    if no_finetune:
        refuse(context, TRAINING, "--no-finetune")
    options = {name: value for name, value in given.items() if name in PruneSettings.model_fields}
    settings = make_settings(
        **options | {"updates": training_updates(updates, finetune, no_finetune)}
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
    results.print(summary(pruned, record), soft_wrap=True)


def training_updates(updates: int | None, finetune: int | None, no_finetune: bool) -> int | None:
    """The number of updates that the options ask for."""
    if not no_finetune:
        return updates
    if updates or finetune:
        other = f"--updates {updates}" if updates else f"--finetune {finetune}"
        raise UserError(
            f"--no-finetune leaves no updates to make, and {other} asks for some.",
            f"Leave out --no-finetune or {other}.",
        )
    return 0
