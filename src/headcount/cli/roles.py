"""`headcount roles`."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks
from headcount.errors import UserError


def roles(
    run: Path = typer.Argument(
        ..., help="A run folder, or a model that is shipped: demo, demo-ru."
    ),
    src: Path | None = typer.Option(None, "--src", help="Source sentences, one per line."),
    text: list[str] | None = typer.Option(
        None, "--text", help="A sentence to look at instead; may be given several times."
    ),
    conllu: Path | None = typer.Option(
        None, "--conllu", help="Parses of the sentences; alone, the sentences come from here."
    ),
    ref: Path | None = typer.Option(
        None, "--ref", help="Translations, for dec and cross (default: the model's own)."
    ),
    sites: str = typer.Option("enc", "--sites", help="Which attention: enc, dec, cross."),
    relations: str = typer.Option(
        "nsubj,obj,amod,advmod", "--relations", help="Which relations; or all, or none."
    ),
    threshold: float = typer.Option(
        0.90, "--threshold", help="Share of one offset that makes a head positional."
    ),
    margin: float = typer.Option(
        0.10, "--margin", help="How far above its baseline a syntactic head is."
    ),
    relative: bool = typer.Option(
        False, "--relative", help="The margin is a share of the baseline, not points."
    ),
    rare_threshold: float = typer.Option(
        0.50, "--rare-threshold", help="Share sent to the two rarest tokens by a rare-words head."
    ),
    frequent: int = typer.Option(
        500, "--frequent", help="How many tokens count as frequent for the rare-words role."
    ),
    frequencies: Path | None = typer.Option(
        None,
        "--frequencies",
        help="Text like the training data, to count tokens in; for imported models.",
    ),
    least: int | None = typer.Option(
        None, "--least", help="Instances that a syntactic role needs (default: 1; with all, 30)."
    ),
    sentences: int | None = typer.Option(
        None, "--sentences", help="How many to use, spread evenly over the file; all by default."
    ),
    processes: int | None = typer.Option(None, "--processes", help="For parsing."),
    batch_tokens: int = typer.Option(
        4000, "--batch-tokens", min=1, help="Source tokens that the model reads at a time."
    ),
    seed: int = typer.Option(1, "--seed", help="Of the bootstrap."),
    full: bool = typer.Option(False, "--full", help="Print every head, not only those named."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Name what each head does.

    Roles are {roles}.
    """
    from headcount.cli.roles_display import show
    from headcount.role.analysis import roles as name_roles
    from headcount.role.head_roles import Criteria
    from headcount.role.parses import INSTALL, spacy_parser
    from headcount.run import resolve_run

    if text and (src or conllu):
        raise UserError("--text stands alone.", "Leave --src and --conllu out.")
    if text and spacy_parser() is None:  # a first look should not need a parser
        relations = "none"
        remarks.print(
            f"No parser is installed, so relations are left out. To have them: {INSTALL}",
            soft_wrap=True,
        )
    # Looking at a sentence or at the shipped model writes no files.
    save = not text and resolve_run(run) == run
    leader = os.environ.get("RANK", "0") == "0"  # under torchrun only one process prints
    reporter = StageReporter(quiet or not leader)
    criteria = Criteria(
        threshold=threshold, margin=margin, relative=relative, rare_threshold=rare_threshold,
        frequent=frequent, least=least,
    )  # fmt: skip
    try:
        result = name_roles(
            run, text or src, conllu=conllu, reference=ref, sites=sites, relations=relations,
            frequencies=frequencies, criteria=criteria, sentences=sentences,
            batch_tokens=batch_tokens, processes=processes, seed=seed, save=save, progress=reporter,
        )  # fmt: skip
    finally:
        reporter.close()
    if not leader:
        return
    if json:
        print_json(result.to_json())
        return
    show(result, full)
    if save and not quiet:
        remarks.print(f"Written: {run / 'analysis' / 'roles.json'} and the head table beside it.")
