"""`headcount bench`: runs side by side in one process: speed, memory, size, and the ceiling.

Runs take turns in every round, in a different order each time, so that other load on the machine
affects all of them alike. The first round is a warm-up and is not counted.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from headcount.data.cleaning import spread
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.heads import BLOCKS, SITES
from headcount.model.arithmetic import (
    count_parameters,
    encoder_products,
    translation_products,
    unit_counts,
)
from headcount.model.decoding import GREEDY, Search
from headcount.processes import end_with_parent
from headcount.progress import Progress, silent
from headcount.run import WEIGHTS, Run, load_config, load_run
from headcount.training.preparation import find_corpus
from headcount.translation import translate_lines, translate_tokens

LARGE = 64
"""Sentences of a large batch."""


@dataclass(frozen=True)
class Timing:
    """Seconds per sentence over the rounds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        """From the seconds of each round."""
        if len(seconds) == 1:
            return cls(seconds[0], seconds[0], seconds[0])
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high)


def interleaved(
    tasks: Sequence[dict[str, Callable[[], int]]],
    rounds: int,
    progress: Progress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Timing]]:
    """Timings of each contestant's tasks; a task returns how many sentences it has worked on."""
    seconds = seconds_in_turns(tasks, rounds, progress, clock)
    return [{name: Timing.of(each[name]) for name in each} for each in seconds]


def seconds_in_turns(
    tasks: Sequence[dict[str, Callable[[], int]]],
    rounds: int,
    progress: Progress = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, list[float]]]:
    """Seconds per sentence of each contestant's tasks in every round."""
    seconds: list[dict[str, list[float]]] = [{name: [] for name in each} for each in tasks]
    turns = len(tasks) * len(tasks[0]) * (rounds + 1)
    done = 0
    progress("Timing", done, turns)
    for number in range(rounds + 1):
        for name in tasks[0]:
            for turn in range(len(tasks)):
                contestant = (turn + number) % len(tasks)
                began = clock()
                sentences = tasks[contestant][name]()
                took = clock() - began
                if number:  # the first round warms up
                    seconds[contestant][name].append(took / sentences)
                done += 1
                progress("Timing", done, turns)
    return seconds


def peak_memory(folder: Path, lines: Sequence[str], beam: int) -> tuple[int, int]:
    """Peak bytes of a fresh process that translates: in all, and above what it held when idle.

    Each run gets a process of its own: memory that one model freed would be reused by the next.
    """
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
        return pool.submit(_translate_and_look, folder, list(lines), beam).result()


def _translate_and_look(folder: Path, lines: list[str], beam: int) -> tuple[int, int]:
    idle = peak_resident()
    translate_lines(load_run(folder), lines, Search(beam=beam))
    peak = peak_resident()
    return peak, peak - idle


def peak_resident() -> int:
    """The peak memory of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


@dataclass(frozen=True)
class Bench:
    """The measurements of one run.

    `heads`, `units` of feed-forward networks and whole residual `blocks` are counted by site.
    `encode_removed` and `translate_removed` are the shares of the first run's multiply-adds that
    this one does not need for the same sentences (greedy, the first run's translations): it can
    be faster by a factor of `1 / (1 - share)` at most.
    """

    run: str
    heads: dict[str, int]
    units: dict[str, int]
    blocks: dict[str, int]
    parameters: int
    file_bytes: int
    peak_bytes: int
    peak_bytes_above_idle: int
    timings: dict[str, Timing]
    encode_removed: float
    translate_removed: float

    @property
    def half(self) -> bool:
        """Whether the file stores 16 bits per weight, as that of the package's own model does."""
        return self.file_bytes < 3 * self.parameters

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def bench(
    folders: Sequence[Path | str],
    lines: Sequence[str],
    *,
    rounds: int = 7,
    beam: int = 4,
    singles: int = 20,
    memory: bool = True,
    device: torch.device | str = "cpu",
    clock: Callable[[], float] = time.perf_counter,
    progress: Progress = silent,
) -> list[Bench]:
    """Speed, memory and size of runs, side by side in one process, with the arithmetic ceiling.

    All translate the same lines; `singles` of them also one at a time.

    `clock` may be `time.process_time`, which a busy machine affects less.
    """
    if rounds < 1:
        raise UserError(f"{rounds} rounds are too few.", "Ask for at least one.")
    runs = [load_run(folder, device) for folder in folders]
    sentences = [_encode(run, lines) for run in runs]
    tasks = [
        _tasks(run, tokens, beam, singles) for run, tokens in zip(runs, sentences, strict=True)
    ]
    timings = interleaved(tasks, rounds, progress, clock)
    first, tokens = runs[0], sentences[0]
    targets = [len(best[0].tokens) + 1 for best in translate_tokens(first, tokens, GREEDY)]
    lengths = [len(sentence) + 1 for sentence in tokens]
    full_encoder = encoder_products(first.model, lengths)
    full = translation_products(first.model, lengths, targets)
    measured = []
    for number, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        peaks = (0, 0)
        if memory:
            progress("Memory", number, len(runs))
            peaks = peak_memory(run.folder, lines, beam)
        measured.append(
            Bench(
                str(Path(folder)),  # `demo` as it was called, not where the package keeps it
                {site: run.model.heads.count(site) for site in SITES},
                unit_counts(run.model),
                {site: run.model.heads.count(site) for site in BLOCKS},
                count_parameters(run.model),
                (run.folder / WEIGHTS).stat().st_size,
                *peaks,
                timings[number],
                removed(encoder_products(run.model, lengths), full_encoder),
                removed(translation_products(run.model, lengths, targets), full),
            )
        )
    if memory:
        progress("Memory", len(runs), len(runs))
    return measured


def removed(products: int, of: int) -> float:
    """The share of multiply-adds that is gone; of a first run that has none, nothing is."""
    return 1 - products / of if of else 0.0


def bench_lines(run: Path, src: Path | None, sentences: int) -> list[str]:
    """Lines to translate: of a file, or of the test set (else dev set) of the run's own corpus."""
    src = _own_sentences(run) if src is None else src
    lines = spread([line for line in read_lines(src) if line.strip()], sentences)
    if not lines:
        raise UserError(f"{src} has no sentence to translate.", "Give another file with --src.")
    return lines


def _own_sentences(run: Path) -> Path:
    """The source side of the test set, else of the dev set, of the corpus a run was trained on."""
    data = load_config(run).data
    try:
        corpus = find_corpus(data, lambda stage, done, total: None)
    except UserError as error:
        raise UserError(
            f"The corpus of {run} is not there.", "Give sentences with --src."
        ) from error
    held_out = [split for split in ("test", "dev") if split in corpus.splits]
    if not held_out:
        raise UserError(f"{corpus.folder} has no test or dev set.", "Give sentences with --src.")
    return corpus.path(held_out[0], "source")


def _tasks(
    run: Run, sentences: list[list[int]], beam: int, singles: int
) -> dict[str, Callable[[], int]]:
    """What is timed: encoding and translating, many at a time and one at a time."""
    few = sentences[:singles]

    def translate(chosen: list[list[int]], search: Search, one_by_one: bool) -> int:
        batches = [[sentence] for sentence in chosen] if one_by_one else [chosen]
        for batch in batches:
            translate_tokens(run, batch, search)
        return len(chosen)

    search = Search(beam=beam)
    return {
        "encode, batch 1": lambda: _encode_batches(run, few, 1),
        f"encode, batch {LARGE}": lambda: _encode_batches(run, sentences, LARGE),
        "greedy, batch 1": lambda: translate(few, GREEDY, True),
        f"greedy, batch {LARGE}": lambda: translate(sentences, GREEDY, False),
        f"beam {beam}, batch 1": lambda: translate(few, search, True),
        f"beam {beam}, batch {LARGE}": lambda: translate(sentences, search, False),
    }


@torch.inference_mode()
def _encode_batches(run: Run, sentences: list[list[int]], size: int) -> int:
    """Encode sentences of similar length together."""
    device, pad, eos = run.model.output_weight.device, run.model.pad, run.source_tokenizer.eos
    by_length = sorted(sentences, key=len)
    for first in range(0, len(by_length), size):
        rows = [[*tokens, eos] for tokens in by_length[first : first + size]]
        longest = max(map(len, rows))
        padded = [row + [pad] * (longest - len(row)) for row in rows]
        run.model.encode(torch.tensor(padded, device=device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return len(sentences)


def _encode(run: Run, lines: Sequence[str]) -> list[list[int]]:
    most = run.config.model.max_positions - 1
    tokens = [run.source_tokenizer.encode(line)[:most] for line in lines]
    return [sentence for sentence in tokens if sentence]
