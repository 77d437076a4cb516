"""`headcount.study` and `headcount.demo`: whole experiments as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from headcount.registry import name_list
from headcount.study.demo import demo_study, run_demo
from headcount.study.plan import make_plan
from headcount.study.publish import write_manifest
from headcount.study.recipe import load_study
from headcount.study.results import StudyResults, load_results
from headcount.study.runner import Runner, choose
from headcount.study.stages import Book


def study(
    recipe: Path | str,
    out: Path | str,
    *,
    only: str | Iterable[str] = (),
    until: str | None = None,
    jobs: int = 1,
    watch: Callable[[], None] = lambda: None,
) -> StudyResults:
    """The whole paper from one recipe: train, rank, name, prune, score, draw, check its claims.

    recipe  a study's recipe: see recipes/study-*.yaml
    out     the study's folder; call again to continue
    only    run these stages (names or patterns) and what they need
    until   run up to this stage
    jobs    stages that may run side by side
    watch   is called while stages run
    """
    out = Path(out)
    config = load_study(Path(recipe))
    book = Book.open(out, make_plan(config, out))
    runner = Runner(book, choose(book, list(name_list(only)), until), jobs)
    write_manifest(config, out)
    runner.run(watch)
    return load_results(out)


def demo(
    out: Path | str = "demo",
    *,
    corpus: str | None = None,
    train: bool = False,
    minutes: float | None = None,
    watch: Callable[[], None] = lambda: None,
) -> StudyResults:
    """The whole story on a small real corpus: rank heads, name them, prune them, open a report.

    out      where everything is written
    corpus   another corpus; `builtin` needs no network
    train    train a small model instead of using the one in the package
    minutes  with `train`: training time (default: 5)
    watch    is called while stages run
    """
    results, _ = run_demo(demo_study(corpus, train, minutes), Path(out), lambda runner: watch)
    return results
