"""Full and pruned runs in headcount and in CTranslate2: speed, size, BLEU.

    python benchmarks/exports.py RUN [RUN ...] --src F --ref F [--sentences 500] [--rounds 5]

Every run is exported in float32 and int8. Search is the same everywhere, CTranslate2's default:
greedy, and beam 4 that stops with 4 finished hypotheses, scores divided by the number of tokens.
One thread. Speed is sentences per second of CPU time, which a busy machine changes less than the
clock; contestants take turns, the first round warms up. Results go to
benchmarks/results/exports.json.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any

import torch

from headcount.bench.engines import line_tokens
from headcount.files import read_lines, write_json
from headcount.heads import SITES
from headcount.interop.ctranslate2_export import open_translator
from headcount.interop.export import export
from headcount.interop.plain_tokenizers import token_names
from headcount.model.decoding import Search
from headcount.run import WEIGHTS, Run, load_run
from headcount.scoring import score_lines
from headcount.translation import translate_tokens

HERE = Path(__file__).resolve().parent
BATCHES = (1, 32)
LONGEST = 100

Translate = Callable[[Sequence[int], int, int], list[str]]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    sources = list(islice(read_lines(options.src), options.sentences))
    references = list(islice(read_lines(options.ref), options.sentences))
    with tempfile.TemporaryDirectory() as temporary:
        contestants = [
            contestant
            for number, folder in enumerate(options.runs)
            for contestant in _contestants(folder, Path(temporary) / str(number), sources)
        ]
        rows = _measure(contestants, references, options)
    machine = {"cpu": platform.processor() or platform.machine(), "load": os.getloadavg()[0]}
    settings = {"sentences": len(sources), "rounds": options.rounds, "threads": 1}
    write_json(HERE / "results" / "exports.json", {"machine": machine, **settings, "rows": rows})
    _print(rows)


def _contestants(folder: Path, temporary: Path, sources: list[str]) -> list[dict[str, Any]]:
    """A run, and its two exports: what to call it, its size, and a function that translates."""
    run = load_run(folder)
    heads = "/".join(str(run.model.heads.count(site)) for site in SITES)
    own = {
        "run": folder.name,
        "heads": heads,
        "engine": "headcount",
        "padded_heads": 0,
        "bytes": (folder / WEIGHTS).stat().st_size,
        "difference": 0.0,
        "translate": _headcount(run, sources),
    }
    results = [own]
    for precision in ("float32", "int8"):
        out = temporary / precision
        exported = export(run, "ctranslate2", out, precision=precision, lines=sources)
        size = (out / "model.bin").stat().st_size
        results.append(
            own
            | {
                "engine": f"CTranslate2 {precision}",
                "padded_heads": exported.padded_heads,
                "bytes": size,
                "difference": exported.difference,
                "translate": _ctranslate2(run, out, sources),
            }
        )
    return results


def _headcount(run: Run, sources: list[str]) -> Translate:
    tokens = [run.source_tokenizer.encode(line) for line in sources]

    def translate(chosen: Sequence[int], beam: int, batch: int) -> list[str]:
        search = Search(
            beam=beam,
            length_penalty=1.0,
            normalisation="length",
            early_stop=True,
            max_ratio=0,
            max_extra=LONGEST,
        )
        order = sorted(chosen, key=lambda i: len(tokens[i]))
        texts: dict[int, str] = {}
        for first in range(0, len(order), batch):
            part = order[first : first + batch]
            for i, best in zip(
                part, translate_tokens(run, [tokens[i] for i in part], search), strict=True
            ):
                texts[i] = run.target_tokenizer.decode(best[0].tokens)
        return [texts[i] for i in chosen]

    return translate


def _ctranslate2(run: Run, folder: Path, sources: list[str]) -> Translate:
    engine, tokens = open_translator(folder), line_tokens(run, sources)
    numbers = {token: number for number, token in enumerate(token_names(run)[1])}

    def translate(chosen: Sequence[int], beam: int, batch: int) -> list[str]:
        results = engine.translate_batch(
            [tokens[i] for i in chosen],
            beam_size=beam,
            length_penalty=1.0,
            max_batch_size=batch,
            max_decoding_length=LONGEST,
        )
        ids = [[numbers[token] for token in result.hypotheses[0]] for result in results]
        return run.target_tokenizer.decode_batch(ids)

    return translate


def _measure(
    contestants: list[dict[str, Any]], references: list[str], options: argparse.Namespace
) -> list[dict[str, Any]]:
    rows = [{k: v for k, v in each.items() if k != "translate"} for each in contestants]
    own: dict[tuple[str, int], list[str]] = {}
    for row, each in zip(rows, contestants, strict=True):
        everything = range(len(references))
        for beam in (1, 4):
            texts = each["translate"](everything, beam, 32)
            row[f"bleu, beam {beam}"] = round(score_lines(texts, references).bleu.value, 2)
            first = own.setdefault((row["run"], beam), texts)
            row[f"same, beam {beam}"] = sum(map(eq, texts, first))
    timed = {1: range(options.timed // 4), 32: range(options.timed)}
    for beam in (1, 4):
        for batch in BATCHES:
            speeds = _interleaved(contestants, timed[batch], beam, batch, options.rounds)
            for row, speed in zip(rows, speeds, strict=True):
                row[f"sentences/s, beam {beam}, batch {batch}"] = round(speed, 1)
    return rows


def _interleaved(
    contestants: list[dict[str, Any]], chosen: range, beam: int, batch: int, rounds: int
) -> list[float]:
    """Sentences per second of CPU time: medians over rounds in which contestants take turns."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for number in range(rounds + 1):
        for turn in range(len(contestants)):
            place = (turn + number) % len(contestants)
            began = time.process_time()
            contestants[place]["translate"](chosen, beam, batch)
            if number:
                seconds[place].append(time.process_time() - began)
    return [len(chosen) / statistics.median(each) for each in seconds]


def _print(rows: list[dict[str, Any]]) -> None:
    names = [name for name in rows[0] if name != "difference"]
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        shown = row | {"bytes": f"{row['bytes'] / 1e6:.1f} MB"}
        print("| " + " | ".join(str(shown[name]) for name in names) + " |")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--ref", type=Path, required=True)
    parser.add_argument("--sentences", type=int, default=500, help="for BLEU")
    parser.add_argument("--timed", type=int, default=96, help="for speed, a quarter one by one")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
