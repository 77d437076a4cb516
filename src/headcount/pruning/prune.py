"""`headcount prune`: from a run to a smaller run."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path

from headcount.bench.costs import Costs
from headcount.distribution import Workers, connect
from headcount.files import owned
from headcount.progress import Progress, silent
from headcount.pruning.calibration import compare_speed
from headcount.pruning.process import Pruning, check_corpus, close, warn
from headcount.pruning.record import (
    forgotten_if_refused,
    is_begun,
    new_record,
    open_record,
    read_record,
    speed_remarks,
    write_record,
)
from headcount.pruning.settings import (
    PruneSettings,
    check_choice,
    check_heads,
    even_remarks,
    make_settings,
)
from headcount.pruning.timed import known_costs
from headcount.run import Run, load_run, regroup
from headcount.training.distillation import load_teacher
from headcount.training.train import Observer


def prune(
    baseline: Run | Path | str,
    train: Path | str,
    out: Path | str,
    settings: PruneSettings | None = None,
    *,
    penalty: float | None = None,
    keep: int | str | dict[str, int] | None = None,
    speedup: float | None = None,
    engine: str | None = None,
    batch: int | None = None,
    by: str | None = None,
    even: bool = False,
    sites: str | Sequence[str] | None = None,
    ff_block: int | None = None,
    train_only: str | Sequence[str] | None = None,
    from_scratch: bool = False,
    seed: int = 1,
    updates: int | None = None,
    finetune: int | None = None,
    steps: int = 4,
    learning_rate: float = 5e-4,
    gate_learning_rate: float | None = None,
    start: float = 2.5,
    warmup: int | None = None,
    patience: int = 200,
    batch_tokens: int | None = None,
    precision: str | None = None,
    distil: float | None = None,
    teacher: Path | str | None = None,
    distil_states: float | None = None,
    minutes: float | None = None,
    dev_sentences: int = 1000,
    bleu_sentences: int = 500,
    resume: bool = False,
    costs: Costs | None = None,
    progress: Progress = silent,
    observe: Observer = lambda line: None,
    workers: Workers | None = None,
) -> Run:
    """Prune attention heads: learn which ones to keep, or go by a score; then remove the rest.

    Feed-forward units and whole blocks likewise: `sites="enc,enc_ff,enc_layers"`. The run
    `baseline` becomes the new run folder `out`; training is on the corpus `train`.

    `settings`, or its fields as plain arguments, say how: `prune(run, corpus, out, penalty=0.01)`;
    `PruneSettings` explains them.
    `costs` is the price list of a speed-up, where it is known already; else it is measured.
    The baseline is only read. `pruning.json` in the new run says what was done. An interrupted
    call leaves a folder that the same call with `resume` continues; a finished one is returned as
    it is. Under torchrun all workers share every update, unless `workers` says otherwise.
    """
    fields = {name: value for name, value in locals().items() if name in PruneSettings.model_fields}
    baseline = baseline.folder if isinstance(baseline, Run) else Path(baseline)
    train, out = Path(train), Path(out)
    with connect(workers) as workers, owned(out, workers.leader):
        source = load_run(baseline, workers.device)
        settings = settings or make_settings(**fields)
        settings = settings.resolved(source.config, source.model.heads)
        source = regroup(source, settings.ff_block)
        check_heads(settings, source.model.heads, str(baseline))
        check_choice(settings, source)
        check_corpus(source, train)
        training = settings.training(source.config.training, source.folder)
        example = load_teacher(training, source, workers.device)
        new = workers.leader and not is_begun(out)
        if workers.leader:
            costs = known_costs(source, train, settings, progress, costs) if new else None
            open_record(out, new_record(source, train, settings, training.teacher, costs), resume)
            for text in even_remarks(settings, source.model.heads) if new else ():
                warn(text)
        workers.wait()
        record = read_record(out)
        if "after" not in record:
            with forgotten_if_refused(out, new):  # damaged text, or nothing to measure scores on
                pruning = Pruning(
                    source, train, out, settings, record, progress, observe, workers, example
                )
            del source, example  # a large model is not to be in memory twice
            pruning.run()
            del pruning
        gc.collect()
        if workers.leader and settings.speedup and "speed" not in record:
            again = regroup(load_run(baseline, workers.device), settings.ff_block)
            pruned = load_run(out, workers.device)
            record["speed"] = compare_speed(again, pruned, train, record, progress)
            write_record(out, record)
            for text in speed_remarks(record):
                warn(text)
        if workers.leader and not record["finished"]:
            close(out)
        workers.wait()
        return load_run(out, workers.device)
