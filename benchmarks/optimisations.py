"""What each optimisation of training brings: the same training without it, in turns.

    python benchmarks/optimisations.py [--corpus DIR] [--updates 4] [--rounds 5]

Every contender is headcount's training loop on the batches of `training.py` with one optimisation
replaced by the plain way (`contenders/with_less.py`); all must have the same loss on the first
batch (but the one whose batches are others). Given are processor seconds without it over those with
all, and the peak of memory. Results go to benchmarks/results/optimisations.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measuring import HERE, RESULTS, Contender, column, machine, ratios, spread, take_turns

from headcount.files import write_json
from training import LARGEST_LOSS_DIFFERENCE, write_work

ALL = "none"
OTHER_BATCHES = "batches of similar lengths"
NAMES = (
    "cheap random numbers for dropout",
    "queries, keys and values in one product",
    "fused attention",
    "logits, loss and gradient in one tensor",
    "the same, and no logits for padding",
    OTHER_BATCHES,
    "fused Adam",
    "freed memory is kept",
)


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        write_work(options, folder)
        arguments = (folder, options.recipe, options.corpus.resolve(), options.updates)
        contenders = {
            name: stack.enter_context(
                Contender(Path(sys.executable), "with_less.py", name, *map(str, arguments))
            )
            for name in (ALL, *NAMES)
        }
        losses = {name: float(each.run("loss")["loss"]) for name, each in contenders.items()}
        same = [loss for name, loss in losses.items() if name != OTHER_BATCHES]
        if max(same) - min(same) > LARGEST_LOSS_DIFFERENCE:
            raise RuntimeError(f"Contenders do not compute the same: {losses}")
        work = {name: partial(each.run, "steps") for name, each in contenders.items()}
        costs = take_turns(work, options.rounds)
    cpu = {name: column(rounds, "cpu") for name, rounds in costs.items()}
    tokens = column(costs[ALL], "source_tokens")
    found = {
        "machine": machine(),
        "updates": options.updates,
        "rounds": options.rounds,
        "source_tokens_per_cpu_second": spread(
            [count / seconds for count, seconds in zip(tokens, cpu[ALL], strict=True)]
        ),
        "peak_rss_mb": column(costs[ALL], "peak_rss_mb")[-1],
        "without": {
            name: {
                "times_as_long": ratios(cpu[name], cpu[ALL]),
                "peak_rss_mb": column(costs[name], "peak_rss_mb")[-1],
            }
            for name in NAMES
        },
    }
    write_json(options.out, found)
    print(json.dumps(found, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = HERE.parent
    parser.add_argument("--corpus", type=Path, default=root / "runs" / "data" / "tatoeba-en-fr")
    parser.add_argument("--recipe", type=Path, default=root / "recipes" / "small-cpu.yaml")
    parser.add_argument("--updates", type=int, default=4, help="batches a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "optimisations.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
