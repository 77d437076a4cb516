"""Pools of worker processes, which encoding, timing and sweeps use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import headcount

POOL = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from headcount.processes import end_with_parent
pool = ProcessPoolExecutor(1, get_context("spawn"), end_with_parent)
print(pool.submit(os.getpid).result(), flush=True)
time.sleep(600)
"""


def test_workers_do_not_outlive_a_first_process_that_is_killed() -> None:
    first = subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    worker = int(first.stdout.readline())
    first.kill()
    try:
        first.communicate(timeout=60)  # the pipe is closed when the last process has ended
    except subprocess.TimeoutExpired:
        os.kill(worker, signal.SIGKILL)
        raise


def test_every_pool_has_such_workers() -> None:
    package = Path(headcount.__file__).parent
    with_pools = [p for p in package.rglob("*.py") if "ProcessPoolExecutor(" in p.read_text()]
    assert len(with_pools) >= 3
    assert all("end_with_parent" in path.read_text() for path in with_pools)
