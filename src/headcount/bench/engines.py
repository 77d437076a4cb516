"""How fast runs are in CTranslate2: exported, loaded and timed side by side, as users run them.

Sentences are tokenised before the clock starts, as in `headcount.bench.runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from headcount.bench.runs import LARGE, Timing, interleaved
from headcount.interop.ctranslate2_export import engine_tokens, open_translator
from headcount.interop.export import export
from headcount.model.decoding import Search
from headcount.progress import Progress, silent
from headcount.run import Run, load_run

Task = Callable[[], int]


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
