"""Beam-4 translation, sentences per second, against JoeyNMT, Hugging Face and CTranslate2.

    python benchmarks/decoding.py [--run RUN --src F] [--singles 24] [--sentences 96] [--rounds 5]

All translate the same sentences with the same weights: JoeyNMT gets headcount's copied into its own
model, Hugging Face and CTranslate2 (float32) load what `headcount export` wrote. They end and score
hypotheses in different ways, so headcount searches in the way of each peer in turn:

    Hugging Face   score / length, until no living hypothesis can win
    CTranslate2    score / length, until beam hypotheses are finished
    JoeyNMT        Wu et al.'s length penalty 0.6 (its own stopping is one that headcount lacks)

and the share of equal translations is reported. MarianMT is post-norm only, so the run must be;
without one a model of small-cpu's shape is trained for some minutes, once. Sentences are sorted by
length into batches beforehand, tokens are given, one thread. Seconds are those of the processor,
which a busy machine changes less than the clock. Results go to benchmarks/results/decoding.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from environment import DEFAULT, peers_python
from material import post_norm_run
from measuring import (
    HERE,
    RESULTS,
    Contender,
    Cost,
    column,
    machine,
    ratios,
    spread,
    take_turns,
)
from safetensors.torch import save_file

from headcount.data.cleaning import spread as spread_evenly
from headcount.files import read_lines, write_json
from headcount.interop.export import export
from headcount.interop.plain_tokenizers import token_names
from headcount.run import Run, load_run

BEAM, LONGEST = 4, 60
BATCHES = {"batch 1": 1, "batch 32": 32}
SEARCHES = {
    "Hugging Face": {"normalisation": "length", "length_penalty": 1.0},
    "CTranslate2": {"normalisation": "length", "length_penalty": 1.0, "early_stop": True},
    "JoeyNMT": {"normalisation": "wu", "length_penalty": 0.6},
}
OWN = "headcount"


def main() -> None:
    options = _options()
    peers = peers_python(options.peers)
    run = load_run(options.run or post_norm_run(options.corpus))
    lines = [line for line in read_lines(options.src or options.corpus / "test.en") if line]
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        _write_work(run, lines, options, folder)
        own = stack.enter_context(
            Contender(Path(sys.executable), "with_headcount.py", "translate", str(folder))
        )
        scripts = {
            "Hugging Face": ("with_marian.py", "translate"),
            "CTranslate2": ("with_ctranslate2.py",),
            "JoeyNMT": ("with_joeynmt.py", "translate"),
        }
        others = {
            name: stack.enter_context(Contender(peers, *script, str(folder)))
            for name, script in scripts.items()
        }
        results = {
            "machine": machine(),
            "threads": 1,
            "rounds": options.rounds,
            "model": _describe(run),
            "versions": {n: each.versions for n, each in ({OWN: own} | others).items()},
            **{name: _measure(name, own, others, options.rounds) for name in BATCHES},
        }
    write_json(options.out, results)
    print(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    corpus = HERE.parent / "runs" / "data" / "tatoeba-en-fr"
    parser.add_argument("--run", type=Path, help="a post-norm run")
    parser.add_argument("--corpus", type=Path, default=corpus)
    parser.add_argument("--src", type=Path, help="sentences; the corpus's test set without it")
    parser.add_argument("--singles", type=int, default=24, help="sentences one at a time")
    parser.add_argument("--sentences", type=int, default=96, help="sentences 32 at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="the peers' environment")
    parser.add_argument("--out", type=Path, default=RESULTS / "decoding.json")
    return parser.parse_args()


def _write_work(run: Run, lines: list[str], options: argparse.Namespace, folder: Path) -> None:
    """Sentences, the run and its exports as files that contenders read."""
    run.save(folder / "run")
    export(run, "marian", folder / "marian")
    export(run, "ctranslate2", folder / "ctranslate2")
    counts = {"batch 1": options.singles, "batch 32": options.sentences}
    tasks = {}
    for name, size in BATCHES.items():
        rows = run.source_tokenizer.encode_batch(spread_evenly(lines, counts[name]))
        rows = sorted(([*row, run.source_tokenizer.eos] for row in rows), key=len)
        tasks[name] = [rows[first : first + size] for first in range(0, len(rows), size)]
    source, target = token_names(run)
    work = {
        "beam": BEAM,
        "longest": LONGEST,
        "wu": SEARCHES["JoeyNMT"]["length_penalty"],
        "searches": SEARCHES,
        "names": {"source": list(source), "target": list(target)},
        "tasks": tasks,
    }
    write_json(folder / "sentences.json", work)
    config = run.config.model
    shape = config.model_dump() | {
        "source_size": run.source_tokenizer.size,
        "target_size": run.target_tokenizer.size,
        "label_smoothing": 0.1,
    }
    write_json(folder / "shape.json", shape)
    weights = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    weights["positions"] = run.model.source_embedding.positions.clone()
    save_file(weights, folder / "weights.safetensors")


def _describe(run: Run) -> dict[str, Any]:
    config = run.config.model
    names = ("encoder_layers", "decoder_layers", "heads", "width", "ff_width", "norm")
    described = {name: getattr(config, name) for name in names}
    return described | {"target_vocabulary": run.target_tokenizer.size}


def _measure(
    batch: str, own: Contender, others: dict[str, Contender], rounds: int
) -> dict[str, Any]:
    """Every peer, and headcount with that peer's settings, taking turns."""
    work = {}
    for name, each in others.items():
        work[name] = partial(each.run, batch)
        work[f"{OWN} as {name}"] = partial(own.run, f"{name}, {batch}")
    costs = take_turns(work, rounds)
    sentences = len(costs[next(iter(others))][0]["outputs"])
    results: dict[str, Any] = {"sentences": sentences}
    for clock in ("cpu", "wall"):
        seconds = {name: column(each, clock) for name, each in costs.items()}
        results[f"sentences_per_{clock}_second"] = {
            name: spread([sentences / s for s in each]) for name, each in seconds.items()
        }
        results[f"faster_than_{clock}"] = {
            name: ratios(seconds[name], seconds[f"{OWN} as {name}"]) for name in others
        }
    results["same_translations"] = {name: _same(name, costs) for name in others}
    results["tokens"] = {name: sum(map(len, each[0]["outputs"])) for name, each in costs.items()}
    return results


def _same(peer: str, costs: dict[str, list[Cost]]) -> float:
    """The share of sentences that a peer and headcount translate alike."""
    theirs, ours = costs[peer][0]["outputs"], costs[f"{OWN} as {peer}"][0]["outputs"]
    return round(sum(a == b for a, b in zip(theirs, ours, strict=True)) / len(theirs), 3)


if __name__ == "__main__":
    main()
