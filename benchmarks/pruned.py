"""How much faster pruned models are, against what the arithmetic that is gone allows.

    python benchmarks/pruned.py [--sentences 64] [--rounds 5]

An untrained model of small-cpu's shape (speed depends on shapes only) and copies of it with fewer
heads, physically removed, encode and translate sentences of the built-in corpus in turns
(`headcount.bench.runs`). The ceiling is `1 / (1 - share of multiply-adds removed)`. Seconds are
those of the processor. Results go to benchmarks/results/pruned.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measuring import HERE, RESULTS, machine

from headcount.bench.runs import Bench, bench
from headcount.config import load_recipe
from headcount.data.builtin import generate
from headcount.data.tokenizer import Tokenizer
from headcount.files import write_json
from headcount.heads import Head
from headcount.model.gating import remove_heads
from headcount.model.transformer import Transformer
from headcount.run import Run

# Heads that stay in each layer of (enc, dec, cross), of 8.
KEPT = {"full": (8, 8, 8), "12 of 48 encoder heads": (2, 8, 8), "2 of 8 everywhere": (2, 2, 2)}


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    lines = [sentence.text for sentence, _ in generate(options.sentences, seed=3)]
    with tempfile.TemporaryDirectory() as temporary:
        folders = _runs(Path(temporary), lines)
        results = bench(
            folders,
            lines,
            rounds=options.rounds,
            singles=8,
            memory=False,
            clock=time.process_time,
        )
    result = {
        "machine": machine(),
        "threads": 1,
        "rounds": options.rounds,
        "sentences": len(lines),
        "models": {
            name: _against(each, results[0]) for name, each in zip(KEPT, results, strict=True)
        },
    }
    write_json(options.out, result)
    print(json.dumps(result, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "pruned.json")
    return parser.parse_args()


def _runs(folder: Path, lines: list[str]) -> list[Path]:
    """Runs with the heads of KEPT."""
    config = load_recipe(HERE.parent / "recipes" / "small-cpu.yaml")
    tokenizer = Tokenizer.train(lines, 2000)
    torch.manual_seed(1)
    # A few sentences make a small vocabulary; its size decides what the output layer costs.
    model = Transformer(config.model, tokenizer.size, tokenizer.size).eval()
    paths = []
    for name, kept in KEPT.items():
        limits = dict(zip(("enc", "dec", "cross"), kept, strict=True))
        closed: list[Head] = [h for h in model.head_list() if h.index >= limits[h.site]]
        path = folder / name.replace(" ", "-")
        Run(path, config, remove_heads(model, closed), tokenizer, tokenizer).save()
        paths.append(path)
    return paths


def _against(pruned: Bench, full: Bench) -> dict[str, Any]:
    """Speed-ups over the full model beside their ceilings."""
    results: dict[str, Any] = {"heads": pruned.heads, "parameters": pruned.parameters}
    for task, timing in pruned.timings.items():
        removed = pruned.encode_removed if "encode" in task else pruned.translate_removed
        ceiling = 1 / (1 - removed)
        speed_up = full.timings[task].median / timing.median
        results[task] = {
            "cpu_ms_a_sentence": round(1000 * timing.median, 3),
            "quartiles": [round(1000 * timing.low, 3), round(1000 * timing.high, 3)],
            "speed_up": round(speed_up, 3),
            "ceiling": round(ceiling, 3),
            "of_ceiling": round(speed_up / ceiling, 3),
        }
    return results


if __name__ == "__main__":
    main()
