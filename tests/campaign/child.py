"""headcount in a forked process: what is imported once serves thousands of cases.

What a case does to the process is a function that runs in it before headcount begins: a signal or a
full disk at the n-th write, a limit, a clock that jumps.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 240.0  # on the clock: the machine may be doing other things
CPU_SECONDS = 60
ADDRESS_SPACE = 8 << 30  # what a case may ask for
MEGABYTES = 3000.0  # what it may use

WRITING = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")

Case = dict[str, Any]
Before = Callable[[], None]


class Child:
    """One headcount in a folder, with what it prints in a pipe."""

    def __init__(
        self,
        folder: Path,
        words: Sequence[str],
        before: Before = lambda: None,
        work: Before | None = None,
    ) -> None:
        self.reader, writer = os.pipe()  # a file would be cut by the limits of a full disk
        os.set_blocking(self.reader, False)

        def all_of_it() -> None:
            os.chdir(folder)
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS + 5, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
            before()
            work() if work is not None else run_main(words)

        self.process = fork(all_of_it, writer)
        os.close(writer)

    def wait(self, patience: float = SECONDS) -> Case:
        """Exit code (negative: killed by that signal), seconds, memory, last line."""
        deadline, parts = time.monotonic() + patience, []
        while True:
            parts.append(self._read())
            done, status, used = os.wait4(self.process, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                _, status, used = os.wait4(self.process, 0)
                status = -1
                break
            time.sleep(0.003)
        parts.append(self._read())
        os.close(self.reader)
        printed = b"".join(parts).decode(errors="replace")
        return {
            "code": "hang" if status == -1 else os.waitstatus_to_exitcode(status),
            "cpu": round(used.ru_utime + used.ru_stime, 2),
            "megabytes": round(used.ru_maxrss / 1024),
            "traceback": "Traceback (most recent call last)" in printed,
            "says": (printed.strip().splitlines() or [""])[-1][-300:],
        }

    def _read(self) -> bytes:
        parts = []
        with suppress(BlockingIOError):
            while part := os.read(self.reader, 65536):
                parts.append(part)
        return b"".join(parts)


def still_running(folder: Path, patience: float = 20) -> list[int]:
    """Processes whose working folder is below a folder and that do not end."""
    deadline = time.monotonic() + patience
    while True:
        processes = []
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if os.readlink(link).startswith(f"{folder}/"):
                    processes.append(int(link.parent.name))
        if not processes or time.monotonic() > deadline:
            return processes
        time.sleep(0.2)


def call(folder: Path, *words: str) -> int:
    """Run headcount to its end."""
    outcome = Child(folder, words).wait()
    if outcome["code"] != 0:
        print(outcome["says"], file=sys.stderr)
    code = outcome["code"]
    return code if isinstance(code, int) else 99


def fork(work: Before, output: int) -> int:
    """A process that does some work, with its output there, and ends as Python would end."""
    # No signal may meet the child before its `try`: it would come back as a second campaign.
    blocked = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    process = os.fork()
    if process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        return process
    code = 99
    try:
        for number in blocked:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", closefd=False)
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    except BaseException:
        traceback.print_exc()
    finally:
        _end(code)


def _end(code: int) -> NoReturn:
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def run_main(words: Sequence[str]) -> None:
    """What `headcount WORDS` does, in this process."""
    from headcount.cli import main

    sys.argv = ["headcount", *words]
    main()


def forget_locks() -> None:
    """Own no folder of the parent: a process that `exec` starts would not."""
    from headcount import files

    files._OWNED_HERE.clear()
    for handle in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{handle}").endswith(".owner"):
                os.close(int(handle))


class ForkedStage:
    """A stage of a study as a forked process, in place of `subprocess.Popen`."""

    def __init__(self, command: list[str], log: Path, threads: int) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        module, *words = command[2:]  # python -m MODULE WORDS

        def work() -> None:
            ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # as `study.stages` does it
            forget_locks()
            if module == "headcount":
                run_main(words)
            else:
                sys.argv = [module, *words]
                runpy.run_module(module, run_name="__main__", alter_sys=True)

        with log.open("ab") as output:
            self.pid = fork(work, output.fileno())
        self.code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if done else None
        return self.code

    def wait(self, timeout: float) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        assert self.code is not None
        return self.code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def on_writes(happens: Before) -> Before:
    """Let something happen whenever a file is opened for writing, made, moved or removed."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        opened = event == "open" and isinstance(arguments[2], int)
        if event in WRITING or (opened and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            happens()

    return lambda: sys.addaudithook(watch)


def at_write(number: int, happens: Before) -> Before:
    """Let something happen at the n-th write."""
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            happens()

    return on_writes(count)


def at_every_write(handle: int) -> Before:
    """Write one byte there for each write."""
    return on_writes(lambda: os.write(handle, b".") and None)


def no_space() -> None:
    """What a full disk says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def import_all(foreign: bool = True) -> None:
    """Import what verbs need, once, before anything is forked; `foreign`: other toolkits too."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="agg")
    import torch

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.Adam([weight], fused=True).step()  # the first one imports a great deal
    from pkgutil import walk_packages

    import headcount

    for module in walk_packages(headcount.__path__, "headcount."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # an extra that is not here
                __import__(module.name)
    for name in ("ctranslate2", "onnx", "onnxruntime", "transformers.models.auto") * foreign:
        with suppress(ImportError):
            __import__(name)
    from headcount.study import stages

    stages.start = ForkedStage  # type: ignore[assignment]
    stages.POLL_SECONDS = 0.01
