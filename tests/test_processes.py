"""Pools of worker processes, which encoding, timing and sweeps use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import headcount
from headcount.processes import threads_for, usable_cores

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


def test_threads_are_those_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert [threads_for(jobs) for jobs in (1, 2)] == [3, 3]
    for unusable in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", unusable)
        assert threads_for(1) == usable_cores()
        assert threads_for(10**6) == 1


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be chosen here")
def test_a_process_uses_the_cores_that_it_has() -> None:
    first = min(os.sched_getaffinity(0))
    code = "from headcount.processes import usable_cores; print(usable_cores())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {first}),
    )
    assert done.stdout.split() == [b"1"]
