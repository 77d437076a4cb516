"""`headcount rank`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results
from headcount.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table

    from headcount.heads import Head
    from headcount.ranking.agreement import Agreement
    from headcount.ranking.rank import Ranking


def rank(
    run: Path = typer.Argument(..., help="A run folder."),
    src: Path = typer.Option(..., "--src", help="Source sentences, one a line."),
    ref: Path | None = typer.Option(None, "--ref", help="Their translations, one a line."),
    by: str | None = typer.Option(
        None,
        "--by",
        help="lrp, confidence, ablation, gradient; the latter two need --ref. Default: all"
        " that there is text for.",
    ),
    sites: str = typer.Option("enc,dec,cross", "--sites", help="Which attention."),
    rule: str = typer.Option("ratio", "--rule", help="LRP: ratio, alphabeta or zplus."),
    layer_norm: str = typer.Option(
        "linear", "--layer-norm", help="LRP: a linear map of fixed scale, or identity."
    ),
    bias: str = typer.Option(
        "absorb", "--bias", help="LRP: biases absorb their share, or share it out."
    ),
    attention: str = typer.Option(
        "constant", "--attention", help="LRP: weights constant, or through the softmax."
    ),
    normalise: str = typer.Option(
        "absolute",
        "--normalise",
        help="LRP: share of a layer by signed sums, their absolute values, or neurons'.",
    ),
    epsilon: float = typer.Option(1e-6, "--epsilon", help="LRP: added to denominators."),
    prefix: str = typer.Option(
        "own", "--prefix", help="What the decoder reads: its own translation, or the reference."
    ),
    beam: int = typer.Option(1, "--beam", help="For its own translation."),
    bleu: bool = typer.Option(
        False, "--bleu", help="Also BLEU lost without each head; one translation a head."
    ),
    sentences: int | None = typer.Option(
        None, "--sentences", help="Use so many only, evenly spread over the file."
    ),
    seed: int = typer.Option(1, "--seed", help="Of the random column and the bootstrap."),
    audit: bool = typer.Option(False, "--audit", help="Where the relevance went."),
    agreement: bool = typer.Option(False, "--agreement", help="Rank correlations of measures."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Measure how much each head matters: LRP, confidence, ablation, gradient."""
    from dataclasses import asdict

    from headcount.files import write_json
    from headcount.ranking.rank import AGREEMENT
    from headcount.ranking.rank import rank as rank_heads
    from headcount.registry import name_list

    leader = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    reporter = StageReporter(quiet or not leader)
    if audit and by and "lrp" not in name_list(by):
        raise UserError("--audit follows relevance, but --by has no lrp.", "Add lrp to --by.")
    try:
        ranking = rank_heads(
            run, src, ref, by=by, sites=sites, rule=rule, layer_norm=layer_norm, bias=bias,
            attention=attention, normalise=normalise, epsilon=epsilon, prefix=prefix, beam=beam,
            bleu=bleu, sentences=sentences, seed=seed, save=True, progress=reporter,
        )  # fmt: skip
    finally:
        reporter.close()
    if not leader:
        return
    pairs = ranking.agreement(seed=seed) if agreement else []
    if agreement:
        write_json(run / "analysis" / AGREEMENT, [asdict(pair) for pair in pairs])
    if json:
        extra = {"agreement": [asdict(pair) for pair in pairs]} if agreement else {}
        print_json(ranking.to_json() | extra)
        return
    show(ranking, audit, pairs)
    if not quiet:
        remarks.print(f"Written: {run / 'analysis' / 'heads.csv'} and what stands behind it.")


def show(ranking: Ranking, audit: bool, pairs: Sequence[Agreement]) -> None:
    """Print the ranked heads, and where asked the audit and the agreement."""
    for site in dict.fromkeys(head.site for head in ranking.heads):
        results.print(heads_table(ranking, site))
    if audit and ranking.audit:
        results.print(audit_table(ranking))
    if pairs:
        for site in dict.fromkeys(head.site for head in ranking.heads):
            results.print(layers_table(pairs, site))
        results.print(agreement_table(pairs))
    for line in remarks_on(ranking):
        results.print(line, soft_wrap=True)


def heads_table(ranking: Ranking, site: str) -> Table:
    """The heads of a site, layer by layer, in each the most important first."""
    from rich.box import SIMPLE
    from rich.table import Table

    from headcount.heads import SITE_NAMES

    names = list(ranking.columns)
    title = f"{SITE_NAMES[site].capitalize()}: heads of each layer by {names[0]}"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("head", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    heads = [head for head in ranking.heads if head.site == site]
    for layer in dict.fromkeys(head.layer for head in heads):
        column = ranking[names[0]]

        def first(head: Head, column: dict[Head, float] = column) -> float:
            return -column.get(head, float("-inf"))

        for head in sorted((h for h in heads if h.layer == layer), key=first):
            table.add_row(str(head), *[_number(ranking[name].get(head)) for name in names])
        table.add_section()
    return table


def audit_table(ranking: Ranking) -> Table:
    """What of the relevance of a generation step, 1 at its logit, arrived where."""
    from dataclasses import astuple

    from rich.box import SIMPLE
    from rich.table import Table

    lrp = ranking.about["lrp"]
    title = f"Relevance a step on its way down (rule {lrp['rule']}, layer norm {lrp['layer_norm']})"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("at the output of", no_wrap=True)
    for heading in ("arrived", "sum of |.|", "largest |.|", "to source", "biases took", "lost"):
        table.add_column(heading, justify="right")
    for row in ranking.audit:
        name, *numbers = astuple(row)
        table.add_row(name, *[f"{v:.4f}" if abs(v) < 1e4 else f"{v:.1e}" for v in numbers])
    return table


def layers_table(pairs: Sequence[Agreement], site: str) -> Table:
    """Spearman's and Kendall's correlation in each layer of a site."""
    from rich.box import SIMPLE
    from rich.table import Table

    title = f"Within each layer of {site}: Spearman/Kendall"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("measures", no_wrap=True)
    groups = [g for g in dict.fromkeys(pair.group for pair in pairs) if g.startswith(f"{site}.")]
    layers = [group for group in groups if not group.endswith("*")]
    for group in layers:
        table.add_column(group, justify="right", no_wrap=True)
    found = {(p.first, p.second, p.group): p for p in pairs}
    for first, second in dict.fromkeys((p.first, p.second) for p in pairs):
        cells = [found[first, second, group] for group in layers]
        numbers = [f"{_short(p.spearman)}/{_short(p.kendall)}" for p in cells]
        table.add_row(f"{first} / {second}", *numbers)
    return table


def agreement_table(pairs: Sequence[Agreement]) -> Table:
    """Rank correlations: the mean over the layers of a site, whole sites, all heads."""
    from rich.box import SIMPLE
    from rich.table import Table

    title = (
        "Rank correlations with 95 % bootstrap intervals over sentences"
        " (enc.*: the mean over the layers of enc)"
    )
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for heading in ("heads", "measures"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Spearman", "Kendall"):
        table.add_column(heading, justify="right", no_wrap=True)
    group = None
    for pair in pairs:
        if pair.group[-1].isdigit():
            continue
        if group not in (None, pair.group):
            table.add_section()
        group = pair.group
        table.add_row(
            pair.group,
            f"{pair.first} / {pair.second}",
            _correlation(pair.spearman, pair.spearman_interval),
            _correlation(pair.kendall, pair.kendall_interval),
        )
    return table


def remarks_on(ranking: Ranking) -> list[str]:
    """What stands behind the tables: sentences, steps, what could not be used."""
    from headcount.ranking.sentences import REASONS

    about = ranking.about
    steps = f", {about['steps']} generation steps" if about["steps"] else ""
    lines = [f"{about['sentences']} sentences{steps}."]
    lines += [
        f"{about['skipped'][key]} sentences {what} (left out)."
        for key, what in REASONS.items()
        if about["skipped"][key]
    ]
    unusable = {place: count for place, count in about["unusable_steps"].items() if count}
    if unusable:
        counts = ", ".join(f"{place}: {count}" for place, count in unusable.items())
        lines.append(
            f"Steps in which the heads of a layer add up to almost nothing (left out): {counts}."
        )
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value == 0 or 1e-3 <= abs(value) < 1e4:
        return f"{value:.4f}"
    return f"{value:.1e}"


def _correlation(value: float | None, interval: tuple[float, float] | None = None) -> str:
    if value is None:
        return "-"
    spread = "" if interval is None else f" ({interval[0]:+.2f}..{interval[1]:+.2f})"
    return f"{value:+.2f}{spread}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}".replace("0.", ".")
