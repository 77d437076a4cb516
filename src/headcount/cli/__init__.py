"""The command line: one thin command per verb, and no logic.

Heavy libraries are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import FrameType
from typing import Any, NoReturn, TextIO

import typer

from headcount import __version__
from headcount.cli.console import Verb, check_arguments, check_values
from headcount.errors import Interrupted, Notice, UserError, stop_signals
from headcount.files import visible

app = typer.Typer(
    name="headcount",
    help="Which attention heads of a Transformer matter, what they do, and pruning the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

UsageError = typer.BadParameter.__mro__[1]
"""Typer's own class for a wrong command line; where it is defined depends on typer's version."""

VERBS = {
    "demo": "study",
    "data": "data",
    "train": "train",
    "translate": "translate",
    "score": "translate",
    "rank": "rank",
    "roles": "roles",
    "prune": "prune",
    "prune_sweep": "sweep",
    "bench": "bench",
    "study": "study",
    "import_run": "interop",
    "export": "interop",
    "report": "study",
    "attribute": "explore",
    "explore": "explore",
}
"""Each verb's function, and the module of this package that holds it (`import` is a keyword of
Python, so that function is called `import_run`)."""


def _carrying(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, whose signals and system errors come back to `main` as they are."""

    @functools.wraps(verb)
    def run(*arguments: Any, **options: Any) -> None:
        check_values(options)
        try:
            verb(*arguments, **options)
        except (KeyboardInterrupt, OSError) as error:
            raise _Carried(error) from error

    return run


for verb, module_name in VERBS.items():
    module = import_module(f"headcount.cli.{module_name}")
    name = verb.removesuffix("_run").replace("_", "-")
    app.command(name=name, cls=Verb)(_carrying(getattr(module, verb)))


def _show_version(value: bool) -> None:
    if value:
        typer.echo(f"headcount {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Options before the verb."""


def main() -> None:
    """Entry point. Exit codes:

    0        done
    2        bad input, or a problem of the machine (a full disk): one line says what to do
    70       a bug of headcount: one line names a file that has the traceback
    128 + n  stopped by signal n; what can be saved has been saved
    """
    keep_freed_memory()
    warnings.showwarning = _show_warning
    handlers: dict[int, Any] = {}
    try:
        with suppress(ValueError):  # not the main thread
            for number in stop_signals():
                handlers[number] = signal.signal(number, _interrupt)
        check_arguments(sys.argv[1:])
        if code := app(standalone_mode=False):
            # Typer exits with 130 for any signal that comes before the verb has begun.
            sys.exit(128 + _SIGNALS[-1] if code == 130 and _SIGNALS else code)
    except _Carried as carried:
        _end(carried.error)
    except SystemExit:
        raise
    except BaseException as error:
        _end(error)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(error: BaseException) -> NoReturn:
    """Say in one line why the work has ended, and exit with the matching code."""
    if isinstance(error, typer.Abort):
        sys.exit(128 + signal.SIGINT)
    if isinstance(error, UsageError):
        _stop(_usage(error), 2)
    if isinstance(error, UserError):
        _stop(str(error), 2)
    if isinstance(error, KeyboardInterrupt):
        number = getattr(error, "number", signal.SIGINT)
        _stop(str(error) or "Interrupted.", 128 + number)
    if isinstance(error, BrokenPipeError):
        # The reader of a pipe went away (`headcount ... | head`): nothing is wrong.
        _forget_output()
        sys.exit(0)
    if isinstance(error, OSError):
        _forget_output()
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            remedy = "Free some and run the same command again."
            _stop(f"No space left on the disk ({error}). {remedy}", 2)
        _stop(f"The system says: {error}.", 2)
    if _is_memory(error):
        _stop("There is not enough memory. Use smaller batches, beams or models.", 2)
    _stop(_report_bug(error), 70)


def _usage(error: Any) -> str:
    """What is wrong with a command line, and where its options are listed."""
    path = error.ctx.command_path if error.ctx else "headcount"
    verb = path.split("headcount", 1)[-1].strip()  # it may begin with `python -m`
    command = " ".join(filter(None, ("headcount", verb, "-h")))
    return f"{error.format_message().rstrip('.')}. Help: {command}"


class _Carried(BaseException):
    """Carries an error past typer, which has its own handling of signals and broken pipes."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


_SIGNALS: list[int] = []


def _interrupt(number: int, frame: FrameType | None) -> None:
    _SIGNALS.append(number)
    raise Interrupted(number)


def _is_memory(error: BaseException) -> bool:
    """Whether memory has run out: torch reports it in several ways."""
    text = str(error)
    signs = (
        "not enough memory",
        "can't allocate memory",
        "out of memory",
        "Storage size calculation",
    )
    return isinstance(error, MemoryError) or any(sign in text for sign in signs)


def _report_bug(error: BaseException) -> str:
    """Write the traceback to a file, and return the line that names it."""
    text = "".join(traceback.format_exception(error))
    about = f"headcount {__version__}, Python {sys.version}\n{sys.argv}\n\n{text}"
    try:
        handle, path = tempfile.mkstemp(prefix="headcount-", suffix=".log", text=True)
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as log:
            log.write(about)
    except OSError:
        path = "nowhere: no file could be written"
    short = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return f"This is a bug in headcount ({short}). Please report it with its traceback: {path}"


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print notices for people; warnings of libraries are handled as before."""
    text = str(message) if issubclass(category, Notice) else f"{category.__name__}: {message}"
    print(f"headcount: {visible(text)}", file=sys.stderr)


def _forget_output() -> None:
    """Standard output is closed: flushing it at exit must not fail again."""
    with suppress(OSError, ValueError):  # it may not be a file at all, as in a notebook
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(message: str, code: int) -> NoReturn:
    line = visible(message).replace("\n", " ")
    print(f"headcount: {line}", file=sys.stderr)
    sys.exit(code)


_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Ask the allocator to reuse large blocks; false where it is not glibc's.

    glibc asks the kernel for every large tensor, which clears all of its pages, and returns it when
    it is freed. A training step on a CPU does that hundreds of times; it was 40 % of the time of
    the output layer. With mapping off, freed memory stays in the process and is used again.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
