"""`headcount study`, `headcount demo` and `headcount report`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headcount.cli.console import (
    JSON,
    QUIET,
    StageReporter,
    StatusLine,
    clock,
    print_json,
    remarks,
    results,
    same_command,
)
from headcount.errors import Interrupted

if TYPE_CHECKING:
    from rich.live import Live

    from headcount.study.stages import Book, Runner, Running

QUIET_SECONDS = 60
"""Without a terminal, how long a stage may run without a line."""


def plan_table(book: Book, chosen: list[str]) -> Table:
    """Every stage with its state and an estimate of its time."""
    table = Table(title="Plan", title_justify="left")
    for title in ("stage", "kind", "state", "time"):
        table.add_column(title, justify="right" if title == "time" else "left")
    for name in chosen:
        done = book.done(name)
        seconds = book.stamp(name)["seconds"] if done else book.estimate(name)
        shown = clock(seconds) if done else f"about {clock(seconds)}"
        table.add_row(name, book.stages[name].kind, "done" if done else "to do", shown)
    return table


def live_view(runner: Runner) -> RenderableType:
    """One line for what is running, and how much is done."""
    done, total = len(runner.finished), len(runner.chosen)
    texts = [f"{done} of {total} stages done", f"about {clock(runner.seconds_left())} left"]
    lines: list[RenderableType] = [StatusLine(texts, done / max(1, total))]
    lines += [Text(f"  {_so_far(runner, running)}") for running in runner.running]
    return Group(*lines)


def stage_lines(runner: Runner) -> Callable[[], None]:
    """What is called while stages run where there is no terminal: a line as each begins and ends.

    `20:03:11 en-fr/full: train, 3 of 12`, then `20:09:40 en-fr/full: done in 6:29`; in between
    `20:04:11 en-fr/full: 1:00 of about 6:00` every `QUIET_SECONDS`.
    """
    begun, ended = set(runner.finished), set(runner.finished)
    told: dict[str, float] = {}

    def say(line: str) -> None:
        remarks.print(f"{time.strftime('%H:%M:%S')} {line}", soft_wrap=True)

    def draw() -> None:
        running = {each.name for each in runner.running}
        for number, name in enumerate(runner.chosen, 1):
            if name in runner.finished - ended:
                ended.add(name)
                say(f"{name}: done in {clock(runner.book.stamp(name)['seconds'])}")
            elif name in running - begun:
                begun.add(name)
                say(f"{name}: {runner.book.stages[name].kind}, {number} of {len(runner.chosen)}")
        now = time.monotonic()
        for each in runner.running:
            if now - told.setdefault(each.name, each.began) >= QUIET_SECONDS:
                told[each.name] = now
                say(_so_far(runner, each))

    return draw


def _so_far(runner: Runner, running: Running) -> str:
    """`en-fr/full: 1:00 of about 6:00`."""
    spent = clock(time.monotonic() - running.began)
    return f"{running.name}: {spent} of about {clock(runner.book.estimate(running.name))}"


def study(
    recipe: Path = typer.Argument(..., help="A study's recipe: see recipes/study-*.yaml."),
    out: Path = typer.Option(..., "--out", help="The study's folder; call again to continue."),
    only: list[str] = typer.Option(
        [], "--only", help="Run these stages (names or patterns) and what they need."
    ),
    until: str | None = typer.Option(None, "--until", help="Run up to this stage."),
    jobs: int = typer.Option(1, "--jobs", min=1, help="Stages that may run side by side."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Show the plan and its time only."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """The whole paper from one recipe: train, rank, name, prune, score, draw, check its claims."""
    from contextlib import nullcontext

    from headcount.cli.console import clock
    from headcount.files import owned
    from headcount.study.plan import make_plan
    from headcount.study.publish import write_manifest
    from headcount.study.recipe import load_study
    from headcount.study.stages import Book, Runner, choose

    config = load_study(recipe)
    plan = make_plan(config, out)  # before there is a folder: a recipe that cannot work leaves none
    with nullcontext() if dry_run else owned(out):
        book = Book.open(out, plan)
        chosen = choose(book, only, until)
        runner = Runner(book, chosen, jobs)
        if not dry_run:
            write_manifest(config, out)
            _run(runner, quiet)
    if dry_run and json:
        stages = [{"stage": n, "done": book.done(n), "seconds": book.estimate(n)} for n in chosen]
        print_json({"stages": stages, "seconds_left": runner.seconds_left()})
    elif dry_run:
        results.print(plan_table(book, chosen))
        results.print(f"About {clock(runner.seconds_left())} to go.")
    elif json:
        print_json({"study": str(out), "stages": chosen})
    elif not quiet:
        page = f" Report: {out / 'report.html'}" if "report" in chosen else ""
        results.print(f"{len(chosen)} stages done.{page}", soft_wrap=True)


def _run(runner: Runner, quiet: bool) -> None:
    """Run the stages; a terminal shows what is running, a log gets lines."""
    from rich.live import Live

    with _continue_hint():
        if quiet:
            runner.run()
        elif not remarks.is_terminal:
            runner.run(stage_lines(runner))
        else:
            with Live(console=remarks, refresh_per_second=2) as live:
                runner.run(lambda: live.update(live_view(runner)))


@contextmanager
def _continue_hint() -> Iterator[None]:
    """Stages that are stopped by a signal say how to go on."""
    try:
        yield
    except Interrupted as stopped:
        raise Interrupted(stopped.number, f"Stopped. Continue with: {same_command()}") from stopped


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

    def watch(runner: Runner) -> Callable[[], None]:
        return _watch(runner, live, quiet, lambda: tell(story.told(runner.finished)))

    with _display(quiet) as live, _continue_hint():
        _, seconds = run_demo(study, out, watch)
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
    """What is called while stages run: a line as each begins and ends, and the story so far."""
    seen: set[str] = set()
    say = (lambda: None) if quiet else stage_lines(runner)

    def draw() -> None:
        say()
        new = runner.finished - seen
        seen.update(new)
        if new:
            tell()
        live.update(live_view(runner))

    return draw


def report(
    folder: Path = typer.Argument(..., help="The folder of a study, or of one run."),
    out: Path | None = typer.Option(
        None, "--out", help="The page to write (default: report.html in the folder)."
    ),
    src: Path | None = typer.Option(
        None, "--src", help="Sentences for the explorer (default: the study's own test set)."
    ),
    sentences: int = typer.Option(
        100,
        "--sentences",
        min=1,
        help="How many of them at most; fewer if the page would become too large.",
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Check claims, draw figures and tables, and write one self-contained HTML page."""
    from headcount.study.claims.verdict import HOLDS
    from headcount.study.report import write_report
    from headcount.study.report.story import claims_line

    reporter = StageReporter(quiet)
    try:
        written = write_report(folder, out=out, source=src, sentences=sentences, progress=reporter)
    finally:
        reporter.close()
    if json:
        print_json(
            {
                "page": str(written.page),
                "bytes": written.bytes,
                "figures": [figure.name for figure in written.figures],
                "tables": [table.name for table in written.tables],
                "sentences": written.sentences,
                "claims": {v.claim.id: v.verdict for v in written.verdicts},
                "holds": sum(v.verdict == HOLDS for v in written.verdicts),
            }
        )
        return
    results.print(f"{written.page}: {written.bytes / 1e6:.1f} MB, open it in a browser.")
    results.print(f"{len(written.figures)} figures, {len(written.tables)} tables.")
    results.print(claims_line(written.verdicts), soft_wrap=True)
    if written.missing:
        results.print(f"Not made yet: {', '.join(written.missing)}.", soft_wrap=True)
