"""headcount itself: its own training loop and its own beam search.

    with_headcount.py train FOLDER RECIPE CORPUS UPDATES
    with_headcount.py translate FOLDER
    with_headcount.py multiply

`train` runs updates of `headcount train` whole, reading and padding of pairs and all that a line
of the log needs included (the peers find their batches ready in memory). Every search of
`sentences.json` is a task of its own.
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from serving import Task, serve

from headcount.cli import keep_freed_memory
from headcount.config import load_recipe
from headcount.data.batches import updates
from headcount.distribution import Workers, connect
from headcount.model.decoding import Search, beam_search
from headcount.model.transformer import Transformer
from headcount.run import Run, load_run
from headcount.training.objective import batch_losses
from headcount.training.preparation import prepare_training
from headcount.training.train import make_trainer

SIZE = 1024  # of the square matrices whose product is the machine's peak


def main() -> None:
    keep_freed_memory()  # as the command line does
    task, *arguments = sys.argv[1:]
    if task == "train":
        with connect() as workers:  # one of several processes where the environment says so
            serve(training(workers, *arguments), ["torch"])
        return
    tasks = {"translate": _translation, "multiply": _multiplication}
    serve(tasks[task](*arguments), ["torch"])


def training(
    workers: Workers, folder: str, recipe: str, corpus: str, count: str
) -> dict[str, Task]:
    config = load_recipe(Path(recipe), ["data.corpus=null", f"data.folder={corpus}"])
    prepared = prepare_training(config.data, config.training, lambda stage, done, total: None)
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    model = Transformer(config.model, source.size, target.size, source.pad)
    model.load_state_dict(load_file(Path(folder) / "weights.safetensors"), strict=False)
    run = Run(Path(folder) / "run", config, model, source, target)
    settings = config.training
    stream = updates(
        prepared.train,
        batch_tokens=settings.batch_tokens,
        device_tokens=settings.device_tokens,
        seed=settings.seed,
        pad=source.pad,
        start=target.start,
        eos=target.eos,
        rank=workers.rank,
        world=workers.world,
    )
    chosen = list(islice(stream, int(count)))
    trainer = make_trainer(run, prepared, workers, lambda line: None)

    def loss() -> dict[str, Any]:
        model.eval()
        batch = chosen[0].micro_batches[0].build()
        with torch.no_grad():
            nll = batch_losses(model, batch, 0.0).nll
        return {"loss": float(nll) / batch.target_tokens}

    def steps() -> dict[str, Any]:
        model.train()
        window = trainer._window()
        for update in chosen:
            trainer._train_update(update, window)
        return {"source_tokens": window.source_tokens}

    def gradient() -> dict[str, Any]:
        """What training minimises on all its batches without dropout, and its gradient's norm."""
        model.eval()
        model.zero_grad()
        loss = 0.0
        for update in chosen:
            for micro_batch in update.micro_batches:
                smoothed = trainer.objective.losses(micro_batch.build()).smoothed
                smoothed.backward()
                loss += float(smoothed)
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        model.zero_grad()
        return {"loss": loss, "norm": float(norm)}

    return {"loss": loss, "steps": steps, "gradient": gradient}


def _translation(folder: str) -> dict[str, Task]:
    """Tasks are named `SEARCH, BATCHES`."""
    run = load_run(Path(folder) / "run")
    work = json.loads((Path(folder) / "sentences.json").read_text())
    source, target = run.source_tokenizer, run.target_tokenizer

    def translate(batches: list[list[list[int]]], search: Search) -> dict[str, Any]:
        outputs = []
        for rows in batches:
            longest = max(map(len, rows))
            ids = torch.tensor([row + [source.pad] * (longest - len(row)) for row in rows])
            best = beam_search(run.model, ids, search, start=target.start, eos=target.eos)
            outputs.extend(hypotheses[0].tokens for hypotheses in best)
        return {"outputs": outputs}

    tasks: dict[str, Task] = {}
    for kind, settings in work["searches"].items():
        search = Search(beam=work["beam"], max_ratio=0, max_extra=work["longest"], **settings)
        for name, batches in work["tasks"].items():
            tasks[f"{kind}, {name}"] = lambda b=batches, s=search: translate(b, s)
    return tasks


def _multiplication() -> dict[str, Task]:
    """The machine's peak: products of large square matrices."""
    left, right = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE)
    out = torch.empty(SIZE, SIZE)

    def multiply() -> dict[str, Any]:
        for _ in range(20):
            torch.mm(left, right, out=out)
        return {"flops": 20 * 2 * SIZE**3}

    return {"steps": multiply}


if __name__ == "__main__":
    main()
