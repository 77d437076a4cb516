"""`headcount demo`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli.console import JSON, QUIET, print_json, remarks, results

if TYPE_CHECKING:
    from rich.live import Live

    from headcount.study.runner import Runner


def demo(
    out: Path = typer.Option(Path("demo"), "--out", help="Where everything is written."),
    corpus: str | None = typer.Option(
        None, "--corpus", help="Another corpus; `builtin` needs no network."
    ),
    train: bool = typer.Option(
        False, "--train", help="Train a small model instead of using the one in the package."
    ),
    minutes: float | None = typer.Option(
        None, "--minutes", help="With --train: training time (default: 5)."
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """The whole story on a small real corpus: rank heads, name them, prune them, open a report."""
    from headcount.study.demo import Story, demo_study, first_look, run_demo

    study = demo_study(corpus, train, minutes)
    lines: list[str] = []

    def tell(new: Iterable[str]) -> None:
        """Print lines of the story as they come; as JSON, all of them at the end."""
        for line in new:
            lines.append(line)
            if not json:
                results.print(line, soft_wrap=True, highlight=False)

    if study.pairs[0].run is not None:
        tell(first_look(study.pairs[0].run))
    story = Story(study, out)
    with _display(quiet) as live:
        _, seconds = run_demo(
            study,
            out,
            lambda runner: _watch(runner, live, quiet, lambda: tell(story.told(runner.finished))),
        )
    if json:
        print_json({"study": str(out), "seconds": seconds, "story": lines})
        return
    results.print(f"{seconds:.0f} seconds. Open {out / 'report.html'} in a browser.")


@contextmanager
def _display(quiet: bool) -> Iterator[Live]:
    """The live display while stages run, on a terminal; removed even if a stage fails."""
    from rich.live import Live

    live = Live(console=remarks, refresh_per_second=2, transient=True)
    try:
        if not quiet and remarks.is_terminal:
            live.start()
        yield live
    finally:
        live.stop()


def _watch(runner: Runner, live: Live, quiet: bool, tell: Callable[[], None]) -> Callable[[], None]:
    """What is called while stages run: a line when a stage is done, what runs on a terminal."""
    from headcount.cli.study_display import live_view

    seen: set[str] = set()

    def draw() -> None:
        new = sorted(runner.finished - seen)
        for name in new:
            seen.add(name)
            if not quiet:
                remarks.print(f"{name}: done.")
        if new:
            tell()
        live.update(live_view(runner))

    return draw
