"""`headcount roles`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results

if TYPE_CHECKING:
    from rich.table import Table

    from headcount.bootstrap import Interval
    from headcount.role.result import HeadRoles, Roles


def roles(
    run: Path = typer.Argument(..., help="A run folder."),
    src: Path | None = typer.Option(None, "--src", help="Source sentences, one a line."),
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
    least: int | None = typer.Option(
        None, "--least", help="Instances that a syntactic role needs (default: 1; with all, 30)."
    ),
    sentences: int | None = typer.Option(
        None, "--sentences", help="Use so many only, evenly spread over the file."
    ),
    processes: int | None = typer.Option(None, "--processes", help="For parsing."),
    batch_tokens: int = typer.Option(
        4000, "--batch-tokens", min=1, help="Source tokens that the model reads at a time."
    ),
    seed: int = typer.Option(1, "--seed", help="Of the bootstrap."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Name what each head does: positional, syntactic, rare words."""
    from headcount.role.analysis import roles as name_roles
    from headcount.role.criteria import Criteria

    leader = os.environ.get("RANK", "0") == "0"  # under torchrun one process speaks for all
    reporter = StageReporter(quiet or not leader)
    criteria = Criteria(
        threshold=threshold, margin=margin, relative=relative, rare_threshold=rare_threshold,
        frequent=frequent, least=least,
    )  # fmt: skip
    try:
        result = name_roles(
            run, src, conllu=conllu, reference=ref, sites=sites, relations=relations,
            criteria=criteria, sentences=sentences, batch_tokens=batch_tokens,
            processes=processes, seed=seed, save=True, progress=reporter,
        )  # fmt: skip
    finally:
        reporter.close()
    if not leader:
        return
    if json:
        print_json(result.to_json())
        return
    show(result)
    if not quiet:
        remarks.print(f"Written: {run / 'analysis' / 'roles.json'} and the head table beside it.")


def show(result: Roles) -> None:
    """Print the heads and Table 1."""
    for site in dict.fromkeys(head.site for head in result.heads):
        results.print(heads_table([r for h, r in result.heads.items() if h.site == site]))
    if result.relations:
        results.print(relations_table(result))
    for line in remarks_on(result):
        results.print(line, soft_wrap=True)


def heads_table(reports: list[HeadRoles]) -> Table:
    """One row a head: confidence, its best offset, its shares for rare words, its roles."""
    from rich.box import SIMPLE
    from rich.table import Table

    from headcount.heads import SITE_NAMES
    from headcount.role.positional import best_offset, offset_name
    from headcount.role.registry import DIAGONAL, POSITIONAL, RARE_WORDS
    from headcount.role.result import percent

    site = reports[0].head.site
    rare = any(RARE_WORDS.name in report.scores for report in reports)
    kind = DIAGONAL.name if site == "cross" else POSITIONAL.name
    title = f"{SITE_NAMES[site].capitalize()}: what each head does"
    table = Table(title=title, title_justify="left", box=SIMPLE)
    table.add_column("head", no_wrap=True)
    headings = ["confidence", "offset" if site != "cross" else "from diagonal", "share, %"]
    headings += ["mean distance"] * (site == "cross") + ["rarest/two, %"] * rare
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("roles (score / baseline, %)")
    for report in reports:
        shares = report.scores[kind]
        best = best_offset(shares)
        cells = [str(report.head), "-" if report.confidence is None else f"{report.confidence:.2f}"]
        cells += (
            ["-", "-"] if best is None else [f"{best:+d}", percent(shares[offset_name(best)].value)]
        )
        if site == "cross":
            distance = report.score(kind, "mean distance")
            cells.append("-" if distance is None else f"{distance:.2f}")
        if rare:
            pointed = report.scores.get(RARE_WORDS.name, {}).values()
            cells.append(" / ".join(percent(share.value) for share in pointed) or "-")
        roles = [
            f"{role} ({percent(role.score.value)} / {percent(role.baseline)})"
            for role in report.roles
        ]
        table.add_row(*cells, ", ".join(roles))
    return table


def relations_table(result: Roles) -> Table:
    """The paper's Table 1 with intervals and the number of instances."""
    from rich.box import SIMPLE
    from rich.table import Table

    from headcount.role.relations import PAPER_RELATIONS
    from headcount.role.result import percent

    lines = result.relations
    if len({line.relation for line in lines}) > len(PAPER_RELATIONS):
        lines = sorted(
            lines, key=lambda line: -(-2.0 if line.margin.value is None else line.margin.value)
        )
    table = Table(
        title="Accuracy of the best head / positional baseline, %",
        title_justify="left",
        box=SIMPLE,
        collapse_padding=True,  # 80 columns hold long names of relations
        pad_edge=False,
    )
    table.add_column("relation", no_wrap=True)
    table.add_column("direction", no_wrap=True)
    table.add_column("head", no_wrap=True)
    for heading in ("best/base", "95 %", "margin", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(
            line.relation,
            line.arrow,
            str(line.head or "-"),
            f"{percent(line.score.value)} / {percent(line.baseline.value)}",
            _range(line.score),
            _range(line.margin),
            str(line.instances),
        )
    return table


def remarks_on(result: Roles) -> list[str]:
    """What stands behind the tables: sentences, persons, what could not be used."""
    from headcount.role.result import percent

    data, persons = result.data, result.persons
    rare = result.facts.get("rare words", {})
    lines = [
        f"{data['sentences']} sentences, {data['tokens']} tokens."
        f" Parses: {data['parses']}. Intervals: 95 % bootstrap over sentences."
    ]
    if persons["subjects"]:
        shares = ", ".join(
            f"{name} {percent(persons[name])} %" for name in ("first", "second", "third")
        )
        lines.append(f"Person of {persons['subjects']} subjects: {shares}.")
    if rare.get("sentences"):
        chance = [result.best_head("rare words", name) for name in ("rarest", "two rarest")]
        lines.append(
            f"Rare words: {rare['sentences']} sentences, {rare['queries']} queries; by chance"
            f" {' / '.join(percent(line.baseline.value) for line in chance if line)} %."
        )
    elif not data["frequencies"]:
        lines.append("No rare words: the run keeps no token frequencies of its training data.")
    elif any(head.site == "enc" for head in result.heads):
        frequent = result.criteria.frequent
        lines.append(f"No rare words: every token is among the {frequent} most frequent ones.")
    counted = {
        "unmapped": "sentences whose parse does not fit their tokens (left out of the relations)",
        "too_long": "sentences longer than the model's positions (left out)",
        "without_tokens": "sentences without a token (left out)",
        "joined_words": "words that the tokens cannot tell from a neighbour (counted with it)",
        "lost_instances": "dependencies whose ends the tokens cannot tell apart (left out)",
    }
    lines += [f"{data[key]} {what}." for key, what in counted.items() if data[key]]
    return lines


def _range(share: Interval) -> str:
    if share.low is None or share.high is None:
        return "-"
    return f"{100 * share.low:.0f}..{100 * share.high:.0f}"
