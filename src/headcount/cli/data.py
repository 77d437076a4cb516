"""`headcount data`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, print_json, progress_bar, remarks

CORPUS_HELP = (
    "Which corpus, or several to be mixed: A,B for all pairs of both, A=0.7,B=0.3 for 70 % of the "
    "training pairs from A.\n\n{corpora}"
)


def data(
    name: str = typer.Argument(..., help=CORPUS_HELP),
    out: Path = typer.Option(..., "--out", help="The folder to write."),
    pair: str | None = typer.Option(None, "--pair", help="Source and target language: en-ru."),
    pairs: int | None = typer.Option(
        None, "--pairs", help="Keep this many training pairs, the same ones every time."
    ),
    seed: int = typer.Option(
        0, "--seed", help="Random seed: which pairs --pairs keeps or builtin generates."
    ),
    origin: Path | None = typer.Option(
        None, "--from", help="Your own text: a folder or TSV file (own, opensubtitles)."
    ),
    overlap: float = typer.Option(
        0.9, "--overlap", help="Least overlap in time of two subtitles (opensubtitles)."
    ),
    dataset: list[str] = typer.Option(
        [], "--dataset", metavar="[dev=|test=]NAME", help="A dataset's name (mtdata); repeatable."
    ),
    splits: str = typer.Option(
        "",
        "--splits",
        metavar="train=A,dev=B,test=C",
        help="Which files are train, dev and test, by name without language (own).",
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Fetch a known corpus, mix several, or take your own text; check, clean and split it."""
    from headcount.data.mix import make_corpus

    was_there = (out / "corpus.json").exists()
    with progress_bar(quiet) as bar:
        tasks = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done, total=total)

        corpus = make_corpus(
            name, out, pair, pairs, seed=seed, origin=origin, overlap=overlap,
            dataset=dataset, splits=splits, progress=report,
        )  # fmt: skip
    about = corpus.description
    if json:
        print_json({"folder": str(out), "new": not was_there, **about})
    elif not quiet:
        if was_there:
            remarks.print(f"{out} already holds this corpus; nothing was done.")
        for files, split in about["options"].get("splits", {}).items():
            remarks.print(f"{files}: {split}", soft_wrap=True)
        counts = ", ".join(f"{split} {count}" for split, count in about["counts"].items())
        for domain, sizes in about.get("parts", {}).items():
            sizes = ", ".join(f"{split} {count}" for split, count in sizes.items())
            remarks.print(f"{domain}: {sizes}", soft_wrap=True)
        lost = ", ".join(f"{count} {why}" for why, count in about["dropped"].items() if count)
        remarks.print(f"{out}: {counts} pairs of {about['read']} read.")
        remarks.print(f"Dropped: {lost or 'none'}. Licence: {about['licence']}.", soft_wrap=True)
