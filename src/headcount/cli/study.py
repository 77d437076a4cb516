"""`headcount study`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli.console import JSON, QUIET, print_json, remarks, results, same_command
from headcount.errors import Interrupted

if TYPE_CHECKING:
    from headcount.study.runner import Runner


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
    from headcount.cli.study_display import plan_table
    from headcount.files import owned
    from headcount.study.plan import make_plan
    from headcount.study.publish import write_manifest
    from headcount.study.recipe import load_study
    from headcount.study.runner import Runner, choose
    from headcount.study.stages import Book

    config = load_study(recipe)
    with nullcontext() if dry_run else owned(out):
        book = Book.open(out, make_plan(config, out))
        chosen = choose(book, only, until)
        runner = Runner(book, chosen, jobs)
        if not dry_run:
            write_manifest(config, out)
            _run(runner, quiet)
    if dry_run and json:
        plan = [{"stage": n, "done": book.done(n), "seconds": book.estimate(n)} for n in chosen]
        print_json({"stages": plan, "seconds_left": runner.seconds_left()})
    elif dry_run:
        results.print(plan_table(book, chosen))
        results.print(f"About {clock(runner.seconds_left())} to go.")
    elif json:
        print_json({"study": str(out), "stages": chosen})
    elif not quiet:
        page = f" Report: {out / 'report.html'}" if "report" in chosen else ""
        results.print(f"{len(chosen)} stages done.{page}", soft_wrap=True)


def _run(runner: Runner, quiet: bool) -> None:
    """Run the stages; a terminal shows what is running."""
    from rich.live import Live

    from headcount.cli.study_display import live_view

    try:
        if quiet or not remarks.is_terminal:
            runner.run()
        else:
            with Live(console=remarks, refresh_per_second=2) as live:
                runner.run(lambda: live.update(live_view(runner)))
    except Interrupted as stopped:
        raise Interrupted(stopped.number, f"Stopped. Continue with: {same_command()}") from stopped
