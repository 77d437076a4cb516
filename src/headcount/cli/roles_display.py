"""How `headcount roles` prints its result, in 80 columns."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from headcount.cli.console import results
from headcount.heads import SITE_NAMES
from headcount.role import DIAGONAL, POSITIONAL, RARE_WORDS, ROLES
from headcount.role.head_roles import BestHead, Example, HeadRoles, percent
from headcount.role.positional import LEAST_QUERIES, best_offset, offset_name
from headcount.role.relations import PAPER_RELATIONS
from headcount.role.result import Roles
from headcount.study.cases import nearest_heads

if TYPE_CHECKING:
    from headcount.bootstrap import Interval

WIDTH = 78
NONE = "·"


def show(result: Roles, full: bool = False) -> None:
    """Print the named heads, the best heads, Table 1 and the grid; with `full`, every head."""
    show_named(result)
    sites = list(dict.fromkeys(head.site for head in result.heads))
    named = {head.site for head, entry in result.heads.items() if entry.roles}
    for site in sites if named else ():  # else it has been said that there is nothing to show
        if site in named:
            show_grid(result, site)
        else:
            results.print(f"{SITE_NAMES[site].capitalize()}: no head meets a role.\n")
    results.print(best_table(result))
    results.print(
        "Share of queries whose largest weight goes there, and the share expected by chance.\n"
    )
    if result.relations and not any(line.instances for line in result.relations):
        results.print("None of the dependency relations occurs in this text.\n")
    elif result.relations:
        results.print(relations_table(result))
        results.print(
            "Accuracy: how often the best head looks from one end of the relation to the other."
            " Baseline: always look at the most frequent position. Points above it: 95 %.\n"
        )
    if full:
        for site in sites:
            results.print(heads_table([r for h, r in result.heads.items() if h.site == site]))
            results.print(
                "Confidence: mean of the largest attention weight. Shares: of queries whose largest"
                " weight goes to the best offset, to the token itself, or to one of the two rarest"
                " tokens of the sentence.\n"
            )
    for line in remarks_on(result):
        results.print(line)


def show_named(result: Roles) -> None:
    """Every role with its heads, best first, and the sentence in which each is seen best."""
    pairs = [(role, entry) for entry in result.heads.values() for role in entry.roles]
    order = list(ROLES)
    pairs.sort(key=lambda pair: (order.index(pair[0].kind), pair[0].name, -pair[0].value))
    if not pairs:
        results.print(
            f"No head meets a role{_why(result)}. The nearest ones are in the table below.\n"
        )
    for kind, group in groupby(pairs, key=lambda pair: pair[0].kind):
        results.print(Text(f"{kind} heads", style=f"bold {ROLES[kind].colour}"))
        for role, entry in group:
            results.print(f"  {entry.head!s:<9} {role.sentence}")
            if role.seen_best is not None:
                results.print(f"            {example_line(role.seen_best)}")
        results.print("")
    for kind, nearest in nearest_heads(result).items() if pairs else ():
        results.print(Text(f"{kind} heads", style=f"bold {ROLES[kind].colour}"))
        results.print("  none; the nearest:")
        results.print(f"  {nearest}\n")


def _why(result: Roles) -> str:
    """Why none is named, where that says nothing about the heads."""
    tokens = result.data["tokens"]
    if tokens > LEAST_QUERIES:
        return ""
    return (
        f": a text of {tokens} token{'' if tokens == 1 else 's'} is too short to show a habit (an"
        f" offset counts where {LEAST_QUERIES} tokens could have it)"
    )


def example_line(example: Example) -> str:
    """The sentence with how often the head does it there, cut to the width of a screen."""
    count = f"({example.hits} of {example.instances} here)"
    room = WIDTH - 14 - len(count)
    text = example.sentence
    text = text if len(text) <= room else text[: room - 1] + "…"
    return f"“{text}” {count}"


def show_grid(result: Roles, site: str) -> None:
    """A site's heads, one row per layer, with the letters of their roles."""
    heads = [head for head in result.heads if head.site == site]
    if not heads:
        return
    results.print(f"{SITE_NAMES[site].capitalize()}: layers (rows) by heads (columns)")
    columns = sorted({head.index for head in heads})
    results.print("layer " + "".join(f"{index:>3}" for index in columns))
    by_place = {(head.layer, head.index): result.heads[head] for head in heads}
    for layer in sorted({head.layer for head in heads}):
        line = Text(f"{layer:>5} ")
        for index in columns:
            line.append_text(_cell(by_place.get((layer, index))))
        results.print(line)
    kinds = [kind for kind in ROLES.values() if site in kind.sites]
    legend = ", ".join(f"{kind.letter} {kind.name}" for kind in kinds)
    results.print(f"{legend}, {NONE} none of these; blank: no such head.\n")


def _cell(entry: HeadRoles | None) -> Text:
    """The letters of a head's roles, in their colours, three characters wide."""
    if entry is None:
        return Text("   ")
    kinds = list(dict.fromkeys(role.kind for role in entry.roles))[:2]
    cell = Text(" " * (3 - max(1, len(kinds))))
    for kind in kinds:
        cell.append(ROLES[kind].letter, style=f"bold {ROLES[kind].colour}")
    return cell if kinds else Text(f"  {NONE}")


SUMMED_UP = {POSITIONAL.name: ("-1", "0", "+1"), DIAGONAL.name: ("-1", "0", "+1")}
"""Of roles with many forms, those that the summary shows."""


def best_table(result: Roles) -> Table:
    """The best head under each role except the syntactic one, which has a table of its own."""
    table = _table("Best head under each role")
    for heading in ("site", "what the head does"):
        table.add_column(heading)
    for heading in ("best head", "share, %", "chance, %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in result.best:
        shown = SUMMED_UP.get(line.kind, (line.name,))
        if line in result.relations or line.name not in shown or line.kind not in ROLES:
            continue
        if line.baseline.value:  # a decoder head cannot look to the right
            table.add_row(line.site, ROLES[line.kind].sentence(line.name), *_numbers(line))
    return table


def _numbers(line: BestHead) -> tuple[str, str, str]:
    return str(line.head or "-"), percent(line.score.value), percent(line.baseline.value)


def relations_table(result: Roles) -> Table:
    """The paper's Table 1 with intervals and the number of instances."""
    lines = result.relations
    if len({line.relation for line in lines}) > len(PAPER_RELATIONS):
        lines = sorted(
            lines, key=lambda line: -(-2.0 if line.margin.value is None else line.margin.value)
        )
    table = _table("Best head for each dependency relation (Table 1)")
    for heading in ("relation", "from → to", "best head"):
        table.add_column(heading, no_wrap=True)
    for heading in ("accuracy, %\n(95 %)", "base-\nline", "points\nabove it", "instan-\nces"):
        table.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        head, score, baseline = _numbers(line)
        accuracy = f"{score} ({_range(line.score)})"
        ends = (accuracy, baseline, _range(line.margin), str(line.instances))
        table.add_row(line.relation, line.arrow, head, *ends)
    return table


def heads_table(reports: list[HeadRoles]) -> Table:
    """One row per head: confidence, its best offset, its shares for rare words, its roles."""
    site = reports[0].head.site
    kind = DIAGONAL.name if site == "cross" else POSITIONAL.name
    rare = any(RARE_WORDS.name in report.scores for report in reports)
    table = _table(f"{SITE_NAMES[site].capitalize()}: every head")
    table.add_column("head", no_wrap=True)
    headings = ["confi-\ndence", "best\noffset", "share of\nit, %", "share of\nitself, %"]
    headings[3:] = ["mean\ndistance"] if site == "cross" else headings[3:]
    headings += ["share of the two\nrarest tokens, %"] * rare
    for heading in headings:
        table.add_column(heading, justify="right")
    table.add_column("roles")
    for report in reports:
        scores = report.scores[kind]
        best = best_offset(scores)
        cells = [str(report.head), "-" if report.confidence is None else f"{report.confidence:.2f}"]
        share = None if best is None else scores[offset_name(best)].value
        cells += ["-" if best is None else offset_name(best), percent(share)]
        if site == "cross":
            distance = report.score(kind, "mean distance")
            cells.append("-" if distance is None else f"{distance:.1f}")
        else:
            cells.append(percent(report.score(kind, "0")))
        if rare:
            cells.append(percent(report.score(RARE_WORDS.name, "two rarest")))
        table.add_row(*cells, ", ".join(map(str, report.roles)))
    return table


def _sentences(count: int) -> str:
    return f"{count} sentence{'' if count == 1 else 's'}"


def remarks_on(result: Roles) -> list[str]:
    """Remarks below the tables: sentences, persons, what could not be used."""
    data, persons = result.data, result.persons
    rare = result.facts.get(RARE_WORDS.name, {})
    lines = [
        f"{_sentences(data['sentences'])}, {data['tokens']} tokens."
        f" Parses: {data['parses']}. Intervals: 95 % bootstrap over sentences."
    ]
    if persons["subjects"]:
        shares = ", ".join(
            f"{name} {percent(persons[name])} %" for name in ("first", "second", "third")
        )
        lines.append(f"Person of {persons['subjects']} subjects: {shares}.")
    if rare.get("sentences"):
        lines.append(
            f"Rare words: in {_sentences(rare['sentences'])}, with {rare['queries']} tokens."
        )
    elif not data["frequencies"]:
        lines.append("No rare words: the run has no token frequencies (see --frequencies).")
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


def _table(title: str) -> Table:
    """A plain table that wastes no columns."""
    return Table(
        title=title, title_justify="left", box=SIMPLE, collapse_padding=True, pad_edge=False
    )


def _range(share: Interval) -> str:
    if share.low is None or share.high is None:
        return "-"
    return f"{100 * share.low:.0f}..{100 * share.high:.0f}"
