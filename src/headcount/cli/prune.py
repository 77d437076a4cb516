"""`headcount prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results, speaks
from headcount.errors import UserError

if TYPE_CHECKING:
    from headcount.run import Run

TRAIN = typer.Option(..., "--train", help="A corpus folder of the run's languages.")
SITES = typer.Option("enc", "--sites", help="Where heads are pruned: enc, dec, cross or several.")
TRAIN_ONLY = typer.Option(
    None,
    "--train-only",
    help="Which weights may change: encoder; decoder; encoder,decoder; gates (none). Default: the"
    " side whose heads are pruned.",
)
EVEN = typer.Option(
    False, "--even", help="With --keep: the same number of heads in each layer of the sites."
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
SEED = typer.Option(1, "--seed", help="Of noise, batches and random scores.")


def prune(
    run: Path = typer.Argument(..., help="The run to prune; it is only read."),
    train: Path = TRAIN,
    out: Path = typer.Option(..., "--out", help="The run folder to write."),
    penalty: float | None = typer.Option(
        None, "--penalty", help="What each open head costs, in nats per target token."
    ),
    keep: int | None = typer.Option(None, "--keep", help="Keep exactly this many heads."),
    by: str | None = typer.Option(
        None,
        "--by",
        help="How heads are chosen. Default: gates with --penalty, exact with --keep. {methods}."
        " With --keep also any column of numbers in the run's head table.",
    ),
    even: bool = EVEN,
    sites: str = SITES,
    train_only: str | None = TRAIN_ONLY,
    from_scratch: bool = FROM_SCRATCH,
    updates: int | None = UPDATES,
    finetune: int | None = FINETUNE,
    no_finetune: bool = NO_FINETUNE,
    steps: int = typer.Option(
        4, "--steps", help="Where heads are ranked: the steps in which they go."
    ),
    learning_rate: float = LEARNING_RATE,
    gate_learning_rate: float | None = typer.Option(
        None, "--gate-learning-rate", help="Of the gates. Default: 0.05, with --keep 0.1."
    ),
    warmup: int | None = typer.Option(
        None, "--warmup", help="Updates until the penalty has its full weight."
    ),
    batch_tokens: int | None = BATCH_TOKENS,
    minutes: float | None = typer.Option(None, "--minutes", help="Stop training after this time."),
    seed: int = SEED,
    resume: bool = typer.Option(False, "--resume", help="Go on where an earlier call stopped."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Prune attention heads: learn which ones to keep, or go by a score; then remove the rest."""
    from headcount.pruning.prune import prune as prune_run
    from headcount.pruning.record import read_record
    from headcount.pruning.settings import make_settings
    from headcount.run import load_config
    from headcount.training.display import live_display

    settings = make_settings(
        penalty=penalty,
        keep=keep,
        by=by,
        even=even,
        sites=sites,
        train_only=train_only,
        from_scratch=from_scratch,
        updates=training_updates(updates, finetune, no_finetune),
        finetune=finetune,
        steps=steps,
        learning_rate=learning_rate,
        gate_learning_rate=gate_learning_rate,
        warmup=warmup,
        batch_tokens=batch_tokens,
        minutes=minutes,
        seed=seed,
    )
    config = load_config(run)
    training = settings.resolved(config).training(config.training)
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
    except KeyboardInterrupt as stopped:
        remarks.print(str(stopped) or "Stopped.")
        raise
    if not speaks():
        return
    record = read_record(out)
    if json:
        print_json({"run": str(out), **record})
        return
    if record["decided"]["undecided"] and not quiet:
        remarks.print(_undecided(record), soft_wrap=True)
    results.print(_summary(pruned, record), soft_wrap=True)


def training_updates(updates: int | None, finetune: int | None, no_finetune: bool) -> int | None:
    """The number of updates that the options ask for."""
    if not no_finetune:
        return updates
    if updates or finetune:
        raise UserError("--no-finetune leaves no updates to make.", "Give one or the other.")
    return 0


def _undecided(record: dict[str, Any]) -> str:
    """A warning that names the gates that training has left between open and closed."""
    decided = record["decided"]
    # A selection of one's own may have no gates between open and closed to measure with.
    before = f" Before that: {_quality(decided['gated'])}." if "gated" in decided else ""
    return (
        "Warning: gates that were neither open nor closed when they became binary:"
        f" {', '.join(decided['undecided'])}.{before} After it: {_quality(decided['binary'])}."
        " Longer training (--updates) decides more gates."
    )


def _quality(scores: dict[str, float]) -> str:
    bleu = f", BLEU {scores['dev_bleu']:.2f}" if "dev_bleu" in scores else ""
    return f"dev loss {scores['dev_loss']:.4f}{bleu}"


def _summary(run: Run, record: dict[str, Any]) -> str:
    """What came of it, in a few lines."""
    full = record["baseline"]["heads"]
    counts = "  ".join(
        f"{site} {sum(map(len, layers))} of {sum(map(len, full[site]))}"
        f" ({' '.join(str(len(layer)) for layer in layers)})"
        for site, layers in record["heads"].items()
    )
    lines = [f"{run.folder}: heads left (by layer): {counts}"]
    for name in ("before", "after"):
        if name in record:
            lines.append(f"{name:6}  {_quality(record[name])}")
    before, after = record["baseline"]["parameters"], record["parameters"]
    lines.append(f"{after} parameters, {1 - after / before:.1%} fewer")
    return "\n".join(lines)
