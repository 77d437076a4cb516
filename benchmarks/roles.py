"""How fast roles are counted, against the encoder's own forward pass, and in how much memory.

    python benchmarks/roles.py [--run RUN --src F] [--sentences 1500] [--sizes 2000,20000]

Without a run: an untrained model of `small-cpu`'s shape (6 layers of 8 heads, 128 wide) on
sentences of the built-in corpus. Parses are made beforehand; reading them is timed on its own. In
every round three things take turns on the same batches: the forward pass (fused attention, nothing
recorded), the recorded forward pass, and the whole analysis (tokens, alignment, batches, recorded
forward, counts).

CPU seconds are what is compared: a busy machine changes them less than the clock. Memory is the
peak resident set of a fresh process that analyses a treebank of each size. Results go to
benchmarks/results/roles.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headcount.bootstrap import GROUPS
from headcount.config import parse_config
from headcount.data.builtin import generate
from headcount.data.conllu import Sentence, write_conllu
from headcount.data.tokenizer import Tokenizer
from headcount.files import write_json
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.role.analysis import BATCH_TOKENS, roles
from headcount.role.counting import SiteCounts, SiteHeads
from headcount.role.kind import Setting
from headcount.role.parses import Row, Text
from headcount.role.rare_words import Frequencies
from headcount.role.relations import PAPER_RELATIONS, RelativePositions
from headcount.role.sentences import Preparation, ReadySentence, SentenceBatch, batches_of
from headcount.run import Run, load_run

HERE = Path(__file__).resolve().parent
STEPS = ("forward", "recorded", "roles")


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    if options.treebank is not None:
        roles(options.run, conllu=options.treebank, save=False)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run, treebank = _material(options, folder)
        text = Text.given(options.src, None if options.src else treebank, None, options.sentences)
        if options.src is not None:
            text = text.parsed(folder, run.config.data.source, 1, None)
        results = {
            "machine": platform.processor() or platform.machine(),
            "threads": options.threads,
            "run": str(options.run or "untrained"),
            "src": str(options.src or "builtin"),
            **_speed(run, text, options.rounds),
            "memory": _memory(folder, run, options.sizes),
        }
    write_json(HERE / "results" / "roles.json", results)
    print(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--src", type=Path)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--sizes", default="2000,20000")
    parser.add_argument("--treebank", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _material(options: argparse.Namespace, folder: Path) -> tuple[Run, Path]:
    """A run, and built-in sentences with their trees."""
    sentences = [sentence for sentence, _ in generate(2000, seed=1)]
    treebank = folder / "builtin.conllu"
    write_conllu(treebank, sentences)
    if options.run is not None:
        return load_run(options.run), treebank
    run = _untrained(sentences, folder / "run")
    run.save()
    return run, treebank


def _untrained(sentences: list[Sentence], folder: Path) -> Run:
    lines = [sentence.text for sentence in sentences]
    tokenizer = Tokenizer.train(lines, 2000)
    shape = {"encoder_layers": 6, "decoder_layers": 1, "width": 128, "ff_width": 512}
    config = parse_config({"model": shape}, "benchmark")
    counts = np.bincount(tokenizer.encode_flat(lines)[0], minlength=tokenizer.size)
    torch.manual_seed(1)
    model = Transformer(config.model, tokenizer.size, tokenizer.size).eval()
    return Run(folder, config, model, tokenizer, tokenizer, counts)


def _speed(run: Run, text: Text, rounds: int) -> dict[str, Any]:
    """CPU seconds of every step, interleaved, and what they are for the forward pass."""
    begin = time.process_time()
    rows = list(text.rows())
    reading = time.process_time() - begin
    batches = [_tensors(run, sentences) for sentences in _batches(run, rows)]
    work: dict[str, Callable[[], None]] = {
        "forward": lambda: _forward(run, batches),
        "recorded": lambda: _recorded(run, batches),
        "roles": lambda: _roles(run, rows),
    }
    seconds: dict[str, list[float]] = {step: [] for step in STEPS}
    for number in range(rounds + 1):
        for step in STEPS:
            begin = time.process_time()
            work[step]()
            if number:  # the first round warms up
                seconds[step].append(time.process_time() - begin)
    tokens = sum(int(batch.real.sum()) for batch in batches)
    ratios = [r / f for r, f in zip(seconds["roles"], seconds["forward"], strict=True)]
    return {
        "sentences": len(rows),
        "tokens": tokens,
        "heads": len(run.model.heads.heads(["enc"])),
        "cpu_seconds": {step: _spread(values) for step, values in seconds.items()},
        "sentences_per_cpu_second": {
            step: round(len(rows) / statistics.median(values)) for step, values in seconds.items()
        },
        "roles_to_forward": _spread(ratios),
        "reading_parses_cpu_seconds": round(reading, 3),
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, middle, high = min(values), statistics.median(values), max(values)
    return {"median": round(middle, 4), "least": round(low, 4), "most": round(high, 4)}


def _batches(run: Run, rows: list[Row]) -> Iterator[list[ReadySentence]]:
    preparation = Preparation(run.source_tokenizer, PAPER_RELATIONS, run.config.model.max_positions)
    ready = (preparation.ready(line, parse) for line, parse, _ in rows)
    chunks = batches_of((sentence for sentence in ready if sentence), BATCH_TOKENS)
    return chain.from_iterable(chunks)


def _tensors(run: Run, sentences: list[ReadySentence]) -> SentenceBatch:
    return SentenceBatch.of(sentences, pad=run.source_tokenizer.pad, eos=run.source_tokenizer.eos)


@torch.inference_mode()
def _forward(run: Run, batches: list[SentenceBatch]) -> None:
    for batch in batches:
        run.model.encode(batch.source)


@torch.inference_mode()
def _recorded(run: Run, batches: list[SentenceBatch]) -> None:
    for batch in batches:
        with record(run.model, {"weights"}, {"enc"}):
            run.model.encode(batch.source)


@torch.inference_mode()
def _roles(run: Run, rows: list[Row]) -> None:
    tokenizer = run.source_tokenizer
    heads = SiteHeads.of(run.model.heads, "enc")
    assert run.source_frequencies is not None
    frequencies = Frequencies.of(
        run.source_frequencies, {tokenizer.pad, tokenizer.start, tokenizer.eos}
    )
    offsets = RelativePositions(GROUPS, len(PAPER_RELATIONS))
    setting = Setting(
        run.config.model.max_positions,
        relations=PAPER_RELATIONS,
        offsets=offsets,
        frequencies=frequencies,
    )
    counts = SiteCounts(heads, setting)
    for sentences in _batches(run, rows):
        batch = _tensors(run, sentences)
        with record(run.model, {"weights"}, {"enc"}) as recording:
            run.model.encode(batch.source)
        counts.add(batch, {layer: recording["enc", layer, "weights"] for layer in heads.layers})


def _memory(folder: Path, run: Run, sizes: str) -> list[dict[str, float]]:
    """Peak resident set, MB, of analysing treebanks of growing size."""
    if not (run.folder / "model.safetensors").exists():
        return []
    sentences = [sentence for sentence, _ in generate(2000, seed=1)]
    results = []
    for size in map(int, filter(None, sizes.split(","))):
        treebank = folder / f"{size}.conllu"
        endless = chain.from_iterable(repeat(sentences))
        write_conllu(treebank, islice(endless, size))
        command = [sys.executable, __file__, "--run", str(run.folder), "--treebank", str(treebank)]
        begin = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
        seconds = round(time.perf_counter() - begin, 1)
        peak = round(float(done.stdout.split()[-1]))
        results.append({"sentences": size, "peak_rss_mb": peak, "seconds": seconds})
    return results


if __name__ == "__main__":
    main()
