"""One contender of a benchmark: a process that does its task whenever it is asked to.

Contenders live in processes of their own, so that each has the memory allocator, the packages and
the Python environment that its users have, and they can still take turns.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

Task = Callable[[], dict[str, Any]]


def serve(tasks: Mapping[str, Task], packages: list[str]) -> None:
    """Answer each line of standard input, the name of a task, with a line of JSON: what it cost.

    The first line, sent when all is loaded, has the versions of the packages. What libraries print
    goes to standard error, so that it cannot get between the answers.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({name: version(name) for name in packages}), file=answers, flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        results = tasks[line.strip()]()
        cost = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer = {**cost, "peak_rss_mb": round(peak), **results}
        print(json.dumps(answer), file=answers, flush=True)
