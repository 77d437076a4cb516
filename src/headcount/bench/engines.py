"""How fast runs are in an engine, this package or CTranslate2: in turns, as users run them.

For CTranslate2 a run is exported and loaded first. Sentences are tokenised before the clock starts,
as in `headcount.bench.runs`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from headcount.bench.runs import LARGE, Timing, interleaved, seconds_in_turns
from headcount.interop.checking import require_extra
from headcount.interop.ctranslate2_export import (
    build_spec,
    engine_tokens,
    open_translator,
    write_ctranslate2,
)
from headcount.interop.export import export
from headcount.interop.plain_tokenizers import token_names
from headcount.model.decoding import Search
from headcount.progress import Progress, silent
from headcount.registry import Registry
from headcount.run import Run, load_run
from headcount.translation import translate_tokens

Task = Callable[[], int]

Translate = Callable[[range, int, int | None], list[list[int]]]
"""From (indices of sentences, beam, length) to tokens; a length makes every output that long."""


@dataclass(frozen=True)
class Engine:
    """Something that translates with a run.

    fills    whether a layer has every block, and all attentions of a stack the same heads: what a
             pruned model lacks is filled up with zeros
    prepare  from a run, a new folder and tokenised sentences to the function that translates them
    """

    name: str
    help: str
    fills: bool
    prepare: Callable[[Run, Path, Sequence[Sequence[int]]], Translate]


def _own(run: Run, folder: Path, sources: Sequence[Sequence[int]]) -> Translate:
    def translate(batch: range, beam: int, length: int | None) -> list[list[int]]:
        search = Search.of(run.config.search, beam=beam)
        if length is not None:
            search = Search(beam=beam, max_ratio=0, max_extra=length, min_length=length)
        outputs = translate_tokens(run, [sources[i] for i in batch], search)
        return [best[0].tokens for best in outputs]

    return translate


def _ctranslate2(precision: str) -> Callable[[Run, Path, Sequence[Sequence[int]]], Translate]:
    def prepare(run: Run, folder: Path, sources: Sequence[Sequence[int]]) -> Translate:
        require_extra("ctranslate2")
        folder.mkdir(parents=True)
        write_ctranslate2(build_spec(run)[0], folder, precision)
        engine, tokens = open_translator(folder), engine_tokens(run, sources)
        ids = {name: number for number, name in enumerate(token_names(run)[1])}
        search = Search.of(run.config.search)

        def translate(batch: range, beam: int, length: int | None) -> list[list[int]]:
            longest = search.limit(1 + max(len(tokens[i]) for i in batch), 256)
            results = engine.translate_batch(
                [tokens[i] for i in batch],
                beam_size=beam,
                max_batch_size=len(batch),
                max_decoding_length=length or longest,
                min_decoding_length=length or 1,
            )
            return [[ids[name] for name in result.hypotheses[0]] for result in results]

        return translate

    return prepare


ENGINES = Registry(
    "engine",
    [
        Engine("headcount", "this package", False, _own),
        Engine("ctranslate2", "CTranslate2, float32", True, _ctranslate2("float32")),
        Engine("ctranslate2-int8", "CTranslate2, int8", True, _ctranslate2("int8")),
    ],
)


def time_runs(
    runs: Sequence[Run],
    sources: Sequence[Sequence[int]],
    engine: str,
    *,
    batch: int,
    beam: int,
    length: int,
    rounds: int = 12,
    progress: Progress = silent,
) -> list[float]:
    """Seconds per sentence of runs that translate tokenised sentences in an engine, in turns.

    All outputs have the same length. A run's time is its best one: whatever else the machine does
    can only make it longer. With one thread on a CPU it is the processor's time.
    """
    by_length = sorted(sources, key=len)
    batches = [
        range(first, min(first + batch, len(by_length)))
        for first in range(0, len(by_length), batch)
    ]

    def task(translate: Translate) -> Task:
        def work() -> int:
            for each in batches:
                translate(each, beam, length)
            return len(by_length)

        return work

    with TemporaryDirectory() as temporary:
        prepare = ENGINES.find(engine).prepare
        tasks: list[dict[str, Task]] = []
        for number, run in enumerate(runs):
            tasks.append({"": task(prepare(run, Path(temporary) / str(number), by_length))})
            progress("Models to time", number + 1, len(runs))
        seconds = seconds_in_turns(tasks, rounds, progress, quiet_clock(runs[0]))
    return [min(each[""]) for each in seconds]


def quiet_clock(run: Run) -> Callable[[], float]:
    """With one thread on a CPU the processor's time, which other programs affect less."""
    alone = torch.get_num_threads() == 1 and run.model.output_weight.device.type == "cpu"
    return time.process_time if alone else time.perf_counter


@dataclass(frozen=True)
class EngineBench:
    """The measurements of one run at one precision."""

    run: str
    precision: str
    padded_heads: int
    file_bytes: int
    timings: dict[str, Timing]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def bench_ctranslate2(
    folders: Sequence[Path | str],
    lines: Sequence[str],
    *,
    precisions: Sequence[str] = ("float32", "int8"),
    rounds: int = 7,
    beam: int = 4,
    singles: int = 20,
    progress: Progress = silent,
) -> list[EngineBench]:
    """Export runs into a temporary folder, and time them there on the same lines."""
    wanted = [(Path(folder), precision) for folder in folders for precision in precisions]
    with TemporaryDirectory() as temporary:
        exported, tasks = [], []
        for number, (folder, precision) in enumerate(wanted):
            progress("Exporting to CTranslate2", number, len(wanted))
            run, out = load_run(folder), Path(temporary) / str(number)
            exported.append(export(run, "ctranslate2", out, precision=precision))
            tasks.append(engine_tasks(run, out, lines, beam, singles))
        progress("Exporting to CTranslate2", len(wanted), len(wanted))
        timings = interleaved(tasks, rounds, progress)
        sizes = [
            (Path(temporary) / str(number) / "model.bin").stat().st_size
            for number in range(len(wanted))
        ]
    return [
        EngineBench(str(folder), precision, each.padded_heads, size, timing)
        for (folder, precision), each, size, timing in zip(
            wanted, exported, sizes, timings, strict=True
        )
    ]


def engine_tasks(
    run: Run, exported: Path, lines: Sequence[str], beam: int, singles: int, large: int = LARGE
) -> dict[str, Task]:
    """What is timed: greedy and beam search, one sentence at a time and many."""
    engine = open_translator(exported)
    sentences = line_tokens(run, lines)
    most = Search.of(run.config.search).limit(max(map(len, sentences)) + 1, 256)

    def task(chosen: list[list[str]], beam_size: int, batch: int) -> Task:
        def translate() -> int:
            step = 1 if batch == 1 else len(chosen)  # the engine makes batches by length itself
            for first in range(0, len(chosen), step):
                engine.translate_batch(
                    chosen[first : first + step],
                    beam_size=beam_size,
                    max_batch_size=batch,
                    max_decoding_length=most,
                )
            return len(chosen)

        return translate

    few = sentences[:singles]
    return {
        "greedy, batch 1": task(few, 1, 1),
        f"greedy, batch {large}": task(sentences, 1, large),
        f"beam {beam}, batch 1": task(few, beam, 1),
        f"beam {beam}, batch {large}": task(sentences, beam, large),
    }


def line_tokens(run: Run, lines: Sequence[str]) -> list[list[str]]:
    """Lines as the engine's tokens; lines without any are left out."""
    most = run.config.model.max_positions - 1
    encoded = [run.source_tokenizer.encode(line)[:most] for line in lines]
    return engine_tokens(run, [tokens for tokens in encoded if tokens])
