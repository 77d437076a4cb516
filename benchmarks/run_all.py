"""All benchmarks, one after the other, and the page of their results.

    python benchmarks/run_all.py [--quick] [--only training,decoding,...]

Makes the peers' environment where it is missing, runs each benchmark in a process of its own with
one thread, and renders `RESULTS.md`. A benchmark that fails does not stop the others.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import render
from environment import DEFAULT, peers_python
from measuring import HERE, RESULTS


def commands(quick: bool, peers: Path, corpus: Path) -> dict[str, list[str]]:
    """The script of each benchmark with its arguments; quick ones measure less."""
    own, where = ["--peers", str(peers)], ["--corpus", str(corpus)]
    python = str(peers_python(peers))

    def side_by_side(pairs: int, out: str) -> list[str]:
        chosen = ["--pairs", str(pairs), "--texts", "repeated", "--python", python]
        turns = [] if quick else ["--rounds", "3"]
        return ["prepare.py", *chosen, *turns, "--out", str(RESULTS / out), *where]

    rounds = ["--rounds", "2"] if quick else []
    few = ["--sentences", "32"] if quick else []
    sizes = [*(["--pairs", "10000,100000"] if quick else []), *where]
    results = {
        "training": ["training.py", *own, *where, *rounds, *([] if quick else ["--two"])],
        "optimisations": ["optimisations.py", *where, *rounds],
        "decoding": ["decoding.py", *own, *where, *rounds, *few],
        "pruned": ["pruned.py", *rounds, *few],
        "roles": ["roles.py", *(["--sentences", "300"] if quick else [])],
        "lrp": ["lrp.py", *rounds],
        "growth": ["growth.py", *rounds],
        "explore": ["explore.py", *(["--rounds", "10"] if quick else [])],
        "prepare-peers": side_by_side(100_000, "prepare-peers.json"),
        "prepare": ["prepare.py", *sizes],
    }
    if not quick:
        million = "prepare-peers-1-million"
        results[million] = side_by_side(1_000_000, f"{million}.json")
    return results


def main() -> None:
    options = _options()
    work = commands(options.quick, options.peers, options.corpus)
    chosen = options.only.split(",") if options.only else list(work)
    unknown = set(chosen) - work.keys()
    if unknown:
        sys.exit(f"No benchmark {', '.join(sorted(unknown))}. There are: {', '.join(work)}.")
    failed = []
    for name in chosen:
        print(f"== {name}", flush=True)
        script, *arguments = work[name]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        done = subprocess.run(
            [sys.executable, str(HERE / script), *arguments],
            env=os.environ | threads,
            stdout=None if options.verbose else subprocess.DEVNULL,
        )
        if done.returncode:
            failed.append(name)
        render.main()
    print(f"Results: {HERE / 'RESULTS.md'}")
    if failed:
        sys.exit(f"Failed: {', '.join(failed)}.")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    corpus = HERE.parent / "runs" / "data" / "tatoeba-en-fr"
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sentences")
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--corpus", type=Path, default=corpus, help="of `headcount data`")
    parser.add_argument("--peers", type=Path, default=DEFAULT, help="the peers' environment")
    parser.add_argument("--verbose", action="store_true", help="show what the benchmarks print")
    return parser.parse_args()


if __name__ == "__main__":
    main()
