"""How fast the live page answers: a switched head, and the relevance of a sentence.

    python benchmarks/explore.py [--run demo] [--rounds 30] [--threads 2]

Requests go through the whole server (guard, JSON, the worker), without a network in between. Each
round asks, in turns: a plain translation in Python; a translation with one head more switched off;
the relevance of the same, whose translation the server then has; and both at once, for a sentence
with 12 tokens. Seconds by the clock and of the processor: on a busy machine the latter say more.
Results go to benchmarks/results/explore.json.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import RESULTS, machine
from starlette.testclient import TestClient

from headcount.explore.answers import Answers
from headcount.explore.server import loopback_hosts, make_app
from headcount.files import write_json
from headcount.loaded.load import load

TEXT = "The old woman reads a long letter in the small garden."
TOKENS = 12
AIMS = {"switched head": 0.150, "relevance": 0.500}
HOST = "127.0.0.1:8765"


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    model = load(options.run, device="cpu")
    tokens = len(model.source_tokenizer.encode(TEXT))
    if options.run == "demo" and tokens != TOKENS:
        print(f"The sentence has {tokens} tokens with this tokenizer.")
    app = make_app(Answers({"run": model}), loopback_hosts(8765))
    with TestClient(app, base_url=f"http://{HOST}") as client:
        seconds = _measure(client, model, options.rounds)
    plain = seconds["plain translation"]
    result = {
        "machine": machine(),
        "run": str(options.run),
        "threads": options.threads,
        "tokens": tokens,
        "rounds": options.rounds,
        "seconds": {name: _summary(costs) for name, costs in seconds.items()},
        "ratios": {
            name: statistics.median(
                own["cpu"] / base["cpu"] for own, base in zip(costs, plain, strict=True)
            )
            for name, costs in seconds.items()
        },
        "aims": AIMS,
    }
    write_json(options.out, result)
    for name, summary in result["seconds"].items():
        aim = f" (aim {1e3 * AIMS[name]:.0f} ms)" if name in AIMS else ""
        print(
            f"{name}: {1e3 * summary['wall']:.0f} ms by the clock, {1e3 * summary['cpu']:.0f} ms of"
            f" the processor, {result['ratios'][name]:.2f} x a plain translation{aim}"
        )


def _measure(client: TestClient, model: Any, rounds: int) -> dict[str, list[dict[str, float]]]:
    heads = [str(head) for head in model.heads]

    def ask(kind: str, off: list[str], turn: int) -> None:
        asked = {"model": "run", "text": TEXT, "off": off, "page": "benchmark", "turn": turn}
        response = client.post(f"/api/{kind}", json=asked, headers={"origin": f"http://{HOST}"})
        assert response.status_code == 200, response.text

    seconds: dict[str, list[dict[str, float]]] = {}
    for number in range(rounds + 2):
        off, other = [heads[number % len(heads)]], [heads[-1 - number % len(heads)], heads[0]]
        tasks: dict[str, Callable[[], Any]] = {
            "plain translation": partial(model.translate, TEXT),
            "switched head": partial(ask, "translation", off, number),
            "relevance": partial(ask, "relevance", off, number),
            "both at once": partial(ask, "relevance", other, number),
        }
        for name, task in tasks.items():
            wall, cpu = time.perf_counter(), time.process_time()
            task()
            cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
            if number >= 2:  # the first ones warm up
                seconds.setdefault(name, []).append(cost)
    return seconds


def _summary(costs: list[dict[str, float]]) -> dict[str, float]:
    return {kind: statistics.median(cost[kind] for cost in costs) for kind in ("wall", "cpu")}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="demo")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS / "explore.json")
    return parser.parse_args()


if __name__ == "__main__":
    main()
