"""Training speed, source tokens per second, against JoeyNMT, eole and Hugging Face's MarianMT.

    python benchmarks/training.py [--corpus DIR] [--updates 8] [--rounds 7] [--threads 1]

Architecture, batch size, dropout, label smoothing and clipping are those of recipes/small-cpu.yaml;
all contenders train on the same token ids, batch by batch, with the same number of threads, in
turns. headcount, JoeyNMT and eole start from the same weights and must have the same loss there
(MarianMT is post-norm and has weights of its own). headcount's figure includes reading and padding
the pairs, which the peers are given ready. eole is left out where it does not install, and the
results say so.

The machine's peak is measured in the same rounds (a product of large matrices); model FLOPs
utilisation is the arithmetic that real tokens need, three times the forward pass, over it.

Two processes with one thread each are compared with one process of two threads on the wall clock:
on a machine that is busy otherwise that says little, so the load is recorded.

Results go to benchmarks/results/training.json.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from environment import DEFAULT, peers_python
from measuring import (
    HERE,
    RESULTS,
    Contender,
    Cost,
    Team,
    column,
    machine,
    ratios,
    spread,
    take_turns,
)
from safetensors.torch import save_file

from headcount.config import Config, load_recipe
from headcount.data.batches import Batch, updates
from headcount.files import write_json
from headcount.model.arithmetic import translation_products
from headcount.model.transformer import Transformer
from headcount.training.preparation import prepare_training

OWN, JOEYNMT, EOLE, MARIAN, PEAK = "headcount", "JoeyNMT", "eole", "MarianMT", "matrix product"
SAME_WEIGHTS = (OWN, JOEYNMT, EOLE)
LARGEST_LOSS_DIFFERENCE = 1e-4


def main() -> None:
    options = _options()
    peers = peers_python(options.peers)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        flops = write_work(options, folder)
        with ExitStack() as stack:
            contenders = {
                name: stack.enter_context(each)
                for name, each in _contenders(options, peers, folder).items()
            }
            left_out = _leave_out(contenders, peers)
            losses = _same_losses(contenders)
            work = {name: partial(each.run, "steps") for name, each in contenders.items()}
            costs = take_turns(work, options.rounds)
            versions = {name: each.versions for name, each in contenders.items()}
        two = two_ways(options, folder) if options.two else None
    results = {
        "machine": machine(),
        "threads": options.threads,
        "updates": options.updates,
        "rounds": options.rounds,
        "versions": versions,
        "left_out": left_out,
        "same_loss": losses,
        **_summary(costs, flops),
    }
    if two:
        results["two_cores"] = two
    write_json(options.out, results)
    print(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = HERE.parent
    parser.add_argument("--corpus", type=Path, default=root / "runs" / "data" / "tatoeba-en-fr")
    parser.add_argument("--recipe", type=Path, default=root / "recipes" / "small-cpu.yaml")
    parser.add_argument("--updates", type=int, default=8, help="batches a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--two", action="store_true", help="also two processes against two threads")
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="the peers' environment")
    parser.add_argument("--out", type=Path, default=RESULTS / "training.json")
    return parser.parse_args()


def write_work(options: argparse.Namespace, folder: Path) -> float:
    """Batches, weights and shape as files that contenders read; the FLOPs of a round."""
    config = load_recipe(
        options.recipe, ["data.corpus=null", f"data.folder={options.corpus.resolve()}"]
    )
    prepared = prepare_training(config.data, config.training, lambda stage, done, total: None)
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, source.size, target.size, source.pad)
    stream = updates(
        prepared.train,
        batch_tokens=config.training.batch_tokens,
        device_tokens=config.training.device_tokens,
        seed=config.training.seed,
        pad=source.pad,
        start=target.start,
        eos=target.eos,
    )
    batches = [
        micro_batch.build()
        for update in islice(stream, options.updates)
        for micro_batch in update.micro_batches
    ]
    tensors = {}
    for number, batch in enumerate(batches):
        tensors |= {f"{number}.source": batch.source, f"{number}.target": batch.target_output}
    save_file(tensors, folder / "batches.safetensors")
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights["positions"] = model.source_embedding.positions.clone()
    save_file(weights, folder / "weights.safetensors")
    write_json(folder / "shape.json", _shape(config, source.size, target.size))
    return 6.0 * sum(_products(model, batch) for batch in batches)


def _shape(config: Config, source_size: int, target_size: int) -> dict[str, Any]:
    model, training = config.model, config.training
    names = ("encoder_layers", "decoder_layers", "heads", "width", "ff_width", "dropout", "norm")
    return {
        **{name: getattr(model, name) for name in names},
        "source_size": source_size,
        "target_size": target_size,
        "label_smoothing": training.label_smoothing,
        "clip_norm": training.clip_norm,
        "adam_betas": (training.adam_beta1, training.adam_beta2),
        "learning_rate": 1e-4,
    }


def _products(model: Transformer, batch: Batch) -> int:
    """Multiply-adds of the forward pass over a batch's real tokens."""
    source, target = (
        (ids != model.pad).sum(1).tolist() for ids in (batch.source, batch.target_output)
    )
    return translation_products(model, source, target)


def _contenders(options: argparse.Namespace, peers: Path, folder: Path) -> dict[str, Contender]:
    python, threads = Path(sys.executable), options.threads
    return {
        OWN: _own(options, folder, threads),
        JOEYNMT: Contender(peers, "with_joeynmt.py", "train", str(folder), threads=threads),
        EOLE: Contender(peers, "with_eole.py", "train", str(folder), threads=threads),
        MARIAN: Contender(peers, "with_marian.py", "train", str(folder), threads=threads),
        PEAK: Contender(python, "with_headcount.py", "multiply", threads=threads),
    }


def _leave_out(contenders: dict[str, Contender], peers: Path) -> list[str]:
    """Take eole out of the contenders where it is not installed; the names of those taken out."""
    command = [str(peers), "-c", "import eole, pyonmttok"]
    if subprocess.run(command, capture_output=True).returncode == 0:
        return []
    print(f"Continuing without {EOLE}: it is not installed.", file=sys.stderr)
    del contenders[EOLE]
    return [EOLE]


def _same_losses(contenders: dict[str, Contender]) -> dict[str, float]:
    """The loss of the first batch under headcount's weights, which must be the same for all."""
    losses = {
        name: float(each.run("loss")["loss"])
        for name, each in contenders.items()
        if name in SAME_WEIGHTS
    }
    if max(losses.values()) - min(losses.values()) > LARGEST_LOSS_DIFFERENCE:
        raise RuntimeError(f"Contenders do not compute the same: {losses}")
    return losses


def _own(
    options: argparse.Namespace,
    folder: Path,
    threads: int,
    environment: dict[str, str] | None = None,
) -> Contender:
    arguments = (folder, options.recipe, options.corpus.resolve(), options.updates)
    return Contender(
        Path(sys.executable),
        "with_headcount.py",
        "train",
        *map(str, arguments),
        threads=threads,
        environment=environment,
    )


def two_ways(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Two cores: one process with two threads, or two processes that share each update."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    try:
        with ExitStack() as stack:
            threads = stack.enter_context(_own(options, folder, 2))
            processes = [
                stack.enter_context(_own(options, folder, 1, place | {"RANK": str(rank)}))
                for rank in range(2)
            ]
            ways = {"two threads": threads.run, "two processes": Team(processes).run}
            work = {name: partial(run, "steps") for name, run in ways.items()}
            costs = take_turns(work, options.rounds)
    finally:
        os.sched_setaffinity(0, before)
    wall = {name: column(rounds, "wall") for name, rounds in costs.items()}
    tokens = costs["two threads"][0]["source_tokens"]
    return {
        "load": machine()["load"],
        "source_tokens_per_wall_second": {
            name: spread([tokens / seconds for seconds in each]) for name, each in wall.items()
        },
        "processes_faster": ratios(wall["two threads"], wall["two processes"]),
    }


def _summary(costs: dict[str, list[Cost]], flops: float) -> dict[str, Any]:
    peers = {name: rounds for name, rounds in costs.items() if name not in (OWN, PEAK)}
    tokens = {name: column(costs[name], "source_tokens")[0] for name in (OWN, *peers)}
    if len(set(tokens.values())) > 1:
        raise RuntimeError(f"contenders did not train on the same tokens: {tokens}")
    results: dict[str, Any] = {}
    for clock in ("cpu", "wall"):
        seconds = {name: column(rounds, clock) for name, rounds in costs.items()}
        peak = [each["flops"] / each[clock] for each in costs[PEAK]]
        results[f"source_tokens_per_{clock}_second"] = {
            name: spread([tokens[name] / s for s in seconds[name]]) for name in (OWN, *peers)
        }
        results[f"faster_than_{clock}"] = {
            name: ratios(seconds[name], seconds[OWN]) for name in peers
        }
        results[f"peak_gflops_{clock}"] = spread([each / 1e9 for each in peak])
        results[f"flops_utilisation_{clock}"] = {
            name: spread([flops / s / p for s, p in zip(seconds[name], peak, strict=True)])
            for name in (OWN, *peers)
        }
    results["peak_rss_mb"] = {
        name: column(costs[name], "peak_rss_mb")[-1] for name in (OWN, *peers)
    }
    return results


if __name__ == "__main__":
    main()
