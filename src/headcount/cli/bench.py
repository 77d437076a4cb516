"""`headcount bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, results

if TYPE_CHECKING:
    from headcount.bench.engines import EngineBench
    from headcount.bench.runs import Bench


def bench(
    runs: list[Path] = typer.Argument(..., help="Runs; the others are compared with the first."),
    src: Path | None = typer.Option(
        None,
        "--src",
        help="Sentences, one per line. Default: the test set of the first run's data.",
    ),
    sentences: int = typer.Option(200, "--sentences", min=1, help="Use this many, evenly spread."),
    singles: int = typer.Option(
        20, "--singles", min=1, help="This many of them are also translated one at a time."
    ),
    rounds: int = typer.Option(7, "--rounds", min=1, help="Measure everything this many times."),
    beam: int = typer.Option(4, "--beam", min=1, help="Width of the beam."),
    threads: int | None = typer.Option(None, "--threads", min=1, help="CPU threads to use."),
    ctranslate2: bool = typer.Option(
        False, "--ctranslate2", help="Also export the runs to CTranslate2 and time them there."
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Speed, memory and size of runs, side by side in one process, with the arithmetic ceiling."""
    import torch

    from headcount.bench.runs import bench as bench_runs
    from headcount.bench.runs import bench_lines
    from headcount.distribution import default_device

    if threads:
        torch.set_num_threads(threads)
    if ctranslate2:
        from headcount.interop.checking import require_extra

        require_extra("ctranslate2")
    lines = bench_lines(runs[0], src, sentences)
    benches = bench_runs(
        runs,
        lines,
        rounds=rounds,
        beam=beam,
        singles=singles,
        device=default_device(),
        progress=StageReporter(quiet),
    )
    engine: list[EngineBench] = []
    if ctranslate2:
        from headcount.bench.engines import bench_ctranslate2

        engine = bench_ctranslate2(
            runs, lines, rounds=rounds, beam=beam, singles=singles, progress=StageReporter(quiet)
        )
    if json:
        rows = [each.to_json() for each in benches]
        engine_rows = [each.to_json() for each in engine]
        print_json({"runs": rows, "ctranslate2": engine_rows} if ctranslate2 else rows)
        return
    results.print(_sizes(benches))
    results.print(_speeds(benches))
    if engine:
        results.print(_engine_speeds(engine))
    results.print(
        f"{_count(torch.get_num_threads(), 'thread')}; medians of {_count(rounds, 'round')},"
        " in brackets the quartiles; x: faster than the first run."
        " The ceiling is the speed-up if only multiply-adds counted."
    )


def _count(number: int, what: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _sizes(benches: list[Bench]) -> Any:
    from rich.table import Table

    table = Table(title="Size", title_justify="left")
    counts = ["heads"]
    counts += ["units"] if any(each.units != benches[0].units for each in benches) else []
    counts += ["blocks"] if any(each.blocks != benches[0].blocks for each in benches) else []
    table.add_column("run", overflow="fold")
    for name in (*counts, "parameters", "file", "peak memory", "above idle"):
        table.add_column(name, justify="right")
    for each in benches:
        table.add_row(
            each.run,
            *("/".join(str(count) for count in getattr(each, n).values()) for n in counts),
            f"{each.parameters / 1e6:.2f} M",
            f"{each.file_bytes / 1e6:.1f} MB{' (16-bit)' if each.half else ''}",
            *(f"{b / 1e6:.1f} MB" for b in (each.peak_bytes, each.peak_bytes_above_idle)),
        )
    return table


def _speeds(benches: list[Bench]) -> Any:
    from rich.table import Table

    table = Table(title="Milliseconds per sentence", title_justify="left")
    table.add_column("")
    for each in benches:
        table.add_column(each.run, justify="right")
    for name, first in benches[0].timings.items():
        cells = []
        for each in benches:
            timing = each.timings[name]
            times = f"{1e3 * timing.median:.2f} [{1e3 * timing.low:.2f}, {1e3 * timing.high:.2f}]"
            cells.append(f"{times} {first.median / timing.median:.2f}x")
        table.add_row(name, *cells)
    for what in ("encode", "translate"):
        removed = [getattr(each, f"{what}_removed") for each in benches]
        table.add_row(f"ceiling: {what}", *map(_ceiling, removed))
    return table


def _ceiling(removed: float) -> str:
    """How much faster a run can be that needs this share of multiply-adds less."""
    if removed == 1:
        return "100.0% removed, none left"
    return f"{removed:.1%} removed {1 / (1 - removed):.2f}x"


def _engine_speeds(benches: list[EngineBench]) -> Any:
    """Each precision of a run against the same precision of the first run."""
    from rich.table import Table

    table = Table(title="CTranslate2, milliseconds per sentence", title_justify="left")
    table.add_column("")
    for each in benches:
        table.add_column(f"{each.run} {each.precision}", justify="right")
    table.add_row("model", *(f"{each.file_bytes / 1e6:.1f} MB" for each in benches))
    table.add_row("padded heads", *(str(each.padded_heads) for each in benches))
    first = {each.precision: each for each in reversed(benches)}
    for name in benches[0].timings:
        cells = []
        for each in benches:
            base, own = first[each.precision].timings[name].median, each.timings[name].median
            cells.append(f"{1e3 * own:.2f} {base / own:.2f}x")
        table.add_row(name, *cells)
    return table
