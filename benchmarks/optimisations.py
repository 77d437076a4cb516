"""What each optimisation of training brings: the same training without it, in turns.

    python benchmarks/optimisations.py [--corpus DIR] [--updates 24] [--rounds 3]

Every contender is headcount's training loop on the pairs of `training.py` with one optimisation
replaced by the plain way (`contenders/with_less.py`). Without dropout all must have the same loss
and the same norm of its gradient. Given are processor seconds without it over those with all, and
the peak of memory. Results go to benchmarks/results/optimisations.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from measuring import HERE, RESULTS, Contender, column, machine, ratios, spread, take_turns

from headcount.files import write_json
from training import write_work

LARGEST_DIFFERENCE = 1e-4
"""Of losses and of the norms of gradients, as a share."""


def main() -> None:
    options = _options()
    script = HERE / "contenders" / "with_less.py"
    listed = subprocess.check_output([sys.executable, str(script), "--list"])
    everything, *names = json.loads(listed)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        write_work(options, folder)
        arguments = (folder, options.recipe, options.corpus.resolve(), options.updates)
        contenders = {
            name: stack.enter_context(
                Contender(Path(sys.executable), script.name, name, *map(str, arguments))
            )
            for name in (everything, *names)
        }
        _check_gradients(contenders)
        work = {name: partial(each.run, "steps") for name, each in contenders.items()}
        costs = take_turns(work, options.rounds)
    cpu = {name: column(rounds, "cpu") for name, rounds in costs.items()}
    tokens = {name: column(rounds, "source_tokens")[0] for name, rounds in costs.items()}
    if len(set(tokens.values())) > 1:
        raise RuntimeError(f"Contenders did not train on the same tokens: {tokens}")
    results = {
        "machine": machine(),
        "updates": options.updates,
        "rounds": options.rounds,
        "source_tokens_per_cpu_second": spread([tokens[everything] / s for s in cpu[everything]]),
        "peak_rss_mb": column(costs[everything], "peak_rss_mb")[-1],
        "without": {
            name: {
                "times_as_long": ratios(cpu[name], cpu[everything]),
                "peak_rss_mb": column(costs[name], "peak_rss_mb")[-1],
            }
            for name in names
        },
    }
    write_json(options.out, results)
    print(json.dumps(results, indent=1))


def _check_gradients(contenders: Mapping[str, Contender]) -> None:
    """Without dropout all must have the same loss and gradient over all pairs."""
    results = {name: each.run("gradient") for name, each in contenders.items()}
    for figure in ("loss", "norm"):
        values = [float(each[figure]) for each in results.values()]
        if max(values) > (1 + LARGEST_DIFFERENCE) * min(values):
            raise RuntimeError(f"Contenders do not compute the same {figure}: {results}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = HERE.parent
    parser.add_argument("--corpus", type=Path, default=root / "runs" / "data" / "tatoeba-en-fr")
    parser.add_argument("--recipe", type=Path, default=root / "recipes" / "small-cpu.yaml")
    parser.add_argument("--updates", type=int, default=24, help="batches a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "optimisations.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
