"""BLEU and speed of the models of benchmarks/faster.py, in every engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headcount.bench.engines import ENGINES, quiet_clock
from headcount.bench.runs import Timing, interleaved
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import load_corpus
from headcount.data.fetch import sha256_of
from headcount.files import read_json, write_json
from headcount.run import WEIGHTS, Run, load_run
from headcount.scoring import RESAMPLES, score_lines
from headcount.study.score_model import SentenceCounts


def say(text: str) -> None:
    """Print a line of progress with the time of day."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def counts_of(name: str, engine: str, beam: int, options: argparse.Namespace) -> SentenceCounts:
    """What BLEU needs of each sentence, as `scores_of` left it."""
    return SentenceCounts.load(_score_file(name, options, f"{engine}-{beam}.sentences"))


def _score_file(name: str, options: argparse.Namespace, what: str) -> Path:
    path: Path = options.out / "scored" / f"{name}.{what}.json"
    return path


def scores_of(name: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """BLEU and chrF of a model in every engine with every beam, on the test set."""
    path = _score_file(name, options, "scores")
    run = load_run(folder)
    weights = sha256_of(run.folder / WEIGHTS)
    stored: dict[str, Any] = read_json(path) if path.is_file() else {}
    if stored.get("weights") == weights:  # not those of another run that had this name
        return stored
    data = run.config.data
    corpus = load_corpus(options.corpus, f"{data.source}-{data.target}", check=False)
    pairs = spread([pair for pair in corpus.pairs("test") if pair[0].strip()], options.sentences)
    most = run.config.model.max_positions - 1
    sources = [run.source_tokenizer.encode(source)[:most] for source, _ in pairs]
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    references = [pairs[i][1] for i in order]
    scores: dict[str, Any] = {"weights": weights}
    for engine in ENGINES.values():
        with TemporaryDirectory() as temporary:
            translate = engine.prepare(run, Path(temporary) / "0", [sources[i] for i in order])
            for beam in options.beams:
                outputs = []
                for first in range(0, len(order), 32):
                    batch = range(first, min(first + 32, len(order)))
                    outputs += translate(batch, beam, None)
                lines = run.target_tokenizer.decode_batch(outputs)
                scored = score_lines(lines, references, RESAMPLES)
                scores[f"{engine.name}, beam {beam}"] = scored.to_json()
                counts = SentenceCounts.of(lines, references)
                counts.save(_score_file(name, options, f"{engine.name}-{beam}.sentences"))
    write_json(path, scores)
    first = next(score for score in scores.values() if score != weights)
    say(f"{name}: BLEU {first['bleu']['value']:.2f}")
    return scores


def speeds_of(
    runs: Sequence[Run], options: argparse.Namespace
) -> list[dict[tuple[str, int, int], Timing]]:
    """Seconds per sentence of all models, in turns, with outputs as the models write them."""
    data = runs[0].config.data
    corpus = load_corpus(options.corpus, f"{data.source}-{data.target}", check=False)
    lines = spread([s for s, _ in corpus.pairs("test") if s.strip()], options.timed)
    speeds: list[dict[tuple[str, int, int], Timing]] = [{} for _ in runs]
    for engine, batch in product(ENGINES.values(), options.batches):
        some = spread(lines, max(16, options.timed // 8)) if batch == 1 else lines
        with TemporaryDirectory() as temporary:
            tasks = []
            for number, run in enumerate(runs):
                most = run.config.model.max_positions - 1
                encoded = [run.source_tokenizer.encode(line)[:most] for line in some]
                sources = sorted((tokens for tokens in encoded if tokens), key=len)
                translate = engine.prepare(run, Path(temporary) / str(number), sources)
                tasks.append(
                    {
                        str(beam): _task(translate, len(sources), batch, beam)
                        for beam in options.beams
                    }
                )
            timings = interleaved(tasks, options.rounds, clock=quiet_clock(runs[0]))
        for place, timing in enumerate(timings):
            for beam in options.beams:
                speeds[place][engine.name, beam, batch] = timing[str(beam)]
    return speeds


def _task(translate: Any, total: int, batch: int, beam: int) -> Callable[[], int]:
    def work() -> int:
        for first in range(0, total, batch):
            translate(range(first, min(first + batch, total)), beam, None)
        return total

    return work
