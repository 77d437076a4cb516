"""The command line: one thin command a verb, one file a verb, no logic.

Heavy libraries are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import import_module

import typer

from headcount import __version__
from headcount.allocator import keep_freed_memory
from headcount.cli.registry_help import Verb
from headcount.errors import UserError

app = typer.Typer(
    name="headcount",
    help="Which attention heads of a Transformer matter, what they do, and pruning the rest.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

# Verb -> the module of this package that holds the function of the same name. (`import` is no
# name for either: it is `import_run` there.)
VERBS = (
    "demo",
    "data",
    "train",
    "translate",
    "score",
    "rank",
    "roles",
    "prune",
    "prune_sweep",
    "bench",
    "study",
    "import_run",
    "export",
    "report",
)
for verb in VERBS:
    module = import_module(f"headcount.cli.{verb}")
    app.command(name=verb.removesuffix("_run").replace("_", "-"), cls=Verb)(getattr(module, verb))


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
    """Entry point: bad input becomes one line and exit code 2, never a traceback."""
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        _stop(str(error), 2)
    except KeyboardInterrupt:
        _stop("Interrupted.", 130)
    except BrokenPipeError:
        # The reader of a pipe went away (`headcount ... | head`): nothing is wrong.
        _forget_output()
        sys.exit(0)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _forget_output()
        _stop(f"No space left on the disk ({error}). Free some and run the same command again.", 2)


def _forget_output() -> None:
    """Standard output takes no more: what is still to be flushed at the end must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(message: str, code: int) -> None:
    print(f"headcount: {message}", file=sys.stderr)
    sys.exit(code)
