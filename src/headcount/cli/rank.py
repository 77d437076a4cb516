"""`headcount rank`."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks
from headcount.errors import UserError


def rank(
    run: Path = typer.Argument(..., help="A run folder."),
    src: Path = typer.Option(..., "--src", help="Source sentences, one per line."),
    ref: Path | None = typer.Option(
        None, "--ref", help="Their translations, one per line; classes, where the run classifies."
    ),
    by: str | None = typer.Option(
        None,
        "--by",
        help="{measures}. Default: all that the text allows, except slow ones; those based on the"
        " loss or on BLEU need --ref.",
    ),
    sites: str = typer.Option(
        "enc,dec,cross",
        "--sites",
        help="Which attention; also units of feed-forward networks, enc_ff, dec_ff, and whole"
        " blocks, enc_layers, dec_layers.",
    ),
    rule: str = typer.Option("ratio", "--rule", help="LRP: {rules}."),
    layer_norm: str = typer.Option(
        "linear", "--layer-norm", help="LRP: a linear map of fixed scale, or identity."
    ),
    bias: str = typer.Option(
        "absorb", "--bias", help="LRP: biases absorb their share, or leave it to the inputs."
    ),
    attention: str = typer.Option(
        "constant", "--attention", help="LRP: weights constant, or through the softmax."
    ),
    normalise: str = typer.Option(
        "neurons",
        "--normalise",
        help="LRP: a head's share of its layer by signed sums, by absolute values of these sums, or"
        " by absolute values of neurons.",
    ),
    epsilon: float = typer.Option(1e-6, "--epsilon", help="LRP: added to denominators."),
    prefix: str = typer.Option(
        "own", "--prefix", help="What the decoder reads: its own translation, or the reference."
    ),
    beam: int = typer.Option(1, "--beam", help="For its own translation."),
    bleu: bool = typer.Option(
        False, "--bleu", help="Also BLEU lost without each head: one translation per head."
    ),
    sentences: int | None = typer.Option(
        None, "--sentences", help="How many to use, spread evenly over the file; all by default."
    ),
    seed: int = typer.Option(1, "--seed", help="Of random numbers, the bootstrap and shuffles."),
    full: bool = typer.Option(False, "--full", help="All heads with all measures."),
    audit: bool = typer.Option(False, "--audit", help="Where the relevance went."),
    agreement: bool = typer.Option(False, "--agreement", help="Rank correlations of measures."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure how much each head matters."""
    from dataclasses import asdict

    from headcount.cli.rank_display import show
    from headcount.files import write_json
    from headcount.heads import TABLE_CSV
    from headcount.ranking.rank import AGREEMENT
    from headcount.ranking.rank import rank as rank_heads
    from headcount.registry import name_list
    from headcount.run import resolve_run

    leader = os.environ.get("RANK", "0") == "0"  # under torchrun only one process prints
    reporter = StageReporter(quiet or not leader)
    save = resolve_run(run) == run  # looking at the shipped model writes no files
    if audit and by and "lrp" not in name_list(by):
        raise UserError("--audit follows relevance, but --by has no lrp.", "Add lrp to --by.")
    try:
        ranking = rank_heads(
            run, src, ref, by=by, sites=sites, rule=rule, layer_norm=layer_norm, bias=bias,
            attention=attention, normalise=normalise, epsilon=epsilon, prefix=prefix, beam=beam,
            bleu=bleu, sentences=sentences, seed=seed, save=save, progress=reporter,
        )  # fmt: skip
    finally:
        reporter.close()
    if not leader:
        return
    pairs = ranking.agreement(seed=seed) if agreement else []
    if agreement and save:
        write_json(run / "analysis" / AGREEMENT, [asdict(pair) for pair in pairs])
    if json:
        extra = {"agreement": [asdict(pair) for pair in pairs]} if agreement else {}
        print_json(ranking.to_json() | extra)
        return
    show(ranking, pairs if agreement else None, full, audit)
    if save and not quiet:
        remarks.print(f"Written: {run / 'analysis' / TABLE_CSV}, measures.json beside it.")
