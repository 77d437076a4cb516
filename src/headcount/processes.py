"""Processes that this one starts: they end when it does, even if it was killed outright.

`distribution` is about processes that torchrun starts.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """In a worker of any pool: end when the first process does.

    Otherwise it would wait for work for ever: it holds the other end of its own queue.
    """
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_command_with_parent() -> None:
    """In a command that is being started (`preexec_fn`, on Linux): get SIGTERM when it ends."""
    set_signal_at_parents_death = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    ctypes.CDLL(None).prctl(set_signal_at_parents_death, signal.SIGTERM)


def usable_cores() -> int:
    """The cores that this process may use: its own share of the machine, where it has one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def threads_for(jobs: int) -> int:
    """How many threads each of `jobs` processes gets: what OMP_NUM_THREADS says, or its share."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted):
        return int(wanted)
    return max(1, usable_cores() // jobs)
