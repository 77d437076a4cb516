"""`headcount explore` and `headcount attribute`: single sentences."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results


def explore(
    runs: list[str] = typer.Argument(
        ["demo"], help="Runs to look at; two can be compared side by side."
    ),
    src: Path | None = typer.Option(None, "--src", help="Sentences to pick from, one per line."),
    host: str = typer.Option(
        "127.0.0.1",
        "--host",
        help="The address to listen at. Other machines can reach it unless it is the default,"
        " but only with the token in the printed address.",
    ),
    port: int = typer.Option(8765, "--port", help="0 takes any free port."),
    browser: bool = typer.Option(True, help="Open the page in the browser."),
    quiet: bool = QUIET,
) -> None:
    """Open a page to type sentences, look at heads and switch them off."""
    from headcount.explore.explore import explore as explore_runs

    explore_runs(
        runs,
        src=src,
        host=host,
        port=port,
        browser=browser,
        progress=StageReporter(quiet),
        started=lambda address: remarks.print(
            f"The page is at {address} (Ctrl-C ends it).", soft_wrap=True
        ),
    )


def attribute(
    run: Path = typer.Argument(
        ..., help="A run folder, or a model that is shipped: demo, demo-ru."
    ),
    src: Path = typer.Option(..., "--src", help="Source sentences, one per line."),
    ref: Path | None = typer.Option(
        None, "--ref", help="Their translations, for the decoder to read. Default: the model's own."
    ),
    rule: str = typer.Option(
        "zplus", "--rule", help="Of LRP; zplus, that of Voita et al. (2021), gives none below 0."
    ),
    sentences: int | None = typer.Option(
        None, "--sentences", help="How many to use, spread evenly over the file; all by default."
    ),
    out: Path | None = typer.Option(
        None, "--out", help="Where to write. Default: the run's analysis folder."
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Relevance of every token, and how much of each prediction comes from the source."""
    from headcount.attribution import attribute as attribute_tokens
    from headcount.run import resolve_run

    shipped = resolve_run(run) != run
    result = attribute_tokens(
        run, src, ref, rule=rule, sentences=sentences,
        save=out or (not shipped), progress=StageReporter(quiet),
    )  # fmt: skip
    if json:
        print_json(result.to_json())
        return
    results.print(f"Source contribution: {result.mean:.1%} of the relevance of tokens.")
    results.print("By tenths of the translation, first to last (95 % interval):")
    for row in result.by_tenth:
        results.print(
            f"  {row.position:2d}  {row.value:6.1%}  ({row.low:.1%} to {row.high:.1%},"
            f" {row.sentences} sentences)"
        )
    results.print(f"Sums over tokens agree with the audit to {result.difference:.0e}.")
    folder = out or (None if shipped else run / "analysis")
    if folder is not None and not quiet:
        remarks.print(f"{folder}: attribution.jsonl (tokens), .json, .csv and .svg.")
