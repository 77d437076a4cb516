"""`headcount prune`: from a run to a smaller run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headcount.distribution import Workers, connect
from headcount.files import owned
from headcount.progress import Progress, silent
from headcount.pruning.choice import check_choice
from headcount.pruning.data import check_corpus
from headcount.pruning.process import Pruning, close
from headcount.pruning.record import new_record, open_record, read_record
from headcount.pruning.settings import PruneSettings, check_heads, make_settings
from headcount.run import Run, load_run
from headcount.training.train import Observer


def prune(
    baseline: Path | str,
    train: Path | str,
    out: Path | str,
    settings: PruneSettings | None = None,
    *,
    resume: bool = False,
    progress: Progress = silent,
    observe: Observer = lambda line: None,
    workers: Workers | None = None,
    **fields: Any,
) -> Run:
    """Prune the run `baseline` into the new run folder `out`, training on the corpus `train`.

    `settings`, or its fields as plain arguments, say how: `prune(run, corpus, out, penalty=0.01)`.
    The baseline is only read. `pruning.json` in the new run says what was done. An interrupted
    call leaves a folder that the same call with `resume` continues; a finished one is returned as
    it is. Under torchrun all workers share every update, unless `workers` says otherwise.
    """
    baseline, train, out = Path(baseline), Path(train), Path(out)
    with connect(workers) as workers, owned(out, workers.leader):
        source = load_run(baseline, workers.device)
        settings = (settings or make_settings(**fields)).resolved(source.config)
        check_heads(settings, source.model.heads, str(baseline))
        check_choice(settings, source)
        check_corpus(source, train)
        if workers.leader:
            open_record(out, new_record(source, train, settings), resume)
        workers.wait()
        record = read_record(out)
        if "after" not in record:
            Pruning(source, train, out, settings, record, progress, observe, workers).run()
        if workers.leader and not record["finished"]:
            close(out)
        workers.wait()
        return load_run(out, workers.device)
