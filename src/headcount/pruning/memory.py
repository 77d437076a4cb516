"""How much memory a process has needed at most."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from headcount.model.decoding import Search
from headcount.run import load_run
from headcount.translation import translate_lines


def peak_memory(folder: Path, lines: Sequence[str], beam: int) -> tuple[int, int]:
    """Bytes that a fresh process holds at most while it translates: in all, and more than idle.

    A process of its own, for memory that one model gave back would serve the next.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_translate_and_look, folder, list(lines), beam).result()


def _translate_and_look(folder: Path, lines: list[str], beam: int) -> tuple[int, int]:
    idle = peak_resident()
    translate_lines(load_run(folder), lines, Search(beam=beam))
    peak = peak_resident()
    return peak, peak - idle


def peak_resident() -> int:
    """The most bytes that this process has held so far."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024
