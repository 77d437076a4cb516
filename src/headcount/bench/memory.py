"""The peak memory of a process."""

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
    """Peak bytes of a fresh process that translates: in all, and above what it held when idle.

    Each run gets a process of its own: memory that one model freed would be reused by the next.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
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
