"""What `headcount rank` prints: a grid per site, the most and least important heads, remarks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from headcount.cli.console import results
from headcount.heads import BLOCKS, SITE_NAMES, SITES, Head, kind_of, kinds_at
from headcount.ranking.agreement import MIN_HEADS, Agreement
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measures import LRP, MEASURES, RANDOM, explain
from headcount.ranking.measuring import REASONS
from headcount.ranking.rank import Ranking

ENDS = 5
"""How many of the most and of the least important heads are listed."""
GRID_WIDTH = 80
SHADES = ("grey93", "#cfe1f2", "#93c4de", "#4a97c9", "#1764ab", "#08306b")
"""From little to much; the text on the last three is white."""


def show(
    ranking: Ranking, pairs: Sequence[Agreement] | None, full: bool = False, audit: bool = False
) -> None:
    """Print a ranking, and where asked the agreement, all heads, and the audit."""
    sites = list(dict.fromkeys(head.site for head in ranking.heads))
    main = next(iter(ranking.columns))
    for site, following in zip_longest(sites, sites[1:]):
        results.print(grid_of(ranking, main, site))
        reading = _reading(ranking, main, site)
        if reading and (following is None or _reading(ranking, main, following) != reading):
            results.print(reading, "")
    if full:
        for site in sites:
            results.print(all_heads(ranking, site))
    else:
        for kind in dict.fromkeys(kind_of(site) for site in sites):  # their shares do not compare
            results.print(both_ends(ranking, main, [s for s in sites if kind_of(s) == kind]))
    for name in ranking.columns if full else _measured(ranking):
        results.print(f"{name}: {explain(name)}")
    results.print()
    if audit and ranking.audit:
        results.print(audit_table(ranking), "")
    if pairs is not None:
        show_agreement(pairs, ranking.heads, full)
        results.print()
    for line in remarks_on(ranking):
        results.print(line)
    if not full:
        results.print(f"All {kinds_at(sites)} with all measures: --full.")


def grid_of(ranking: Ranking, column: str, site: str) -> Group:
    """Layers by heads: numbers on blocks, darker for larger numbers."""
    layers = grid(ranking, column, site)
    numbers = [v for heads in layers.values() for v in heads.values() if v is not None]
    scale, power = _scale(numbers)
    indices = sorted({index for heads in layers.values() for index in heads})
    label = MEASURES[column].label if column in MEASURES else column
    unit = f" (numbers x {power})" if power else ""
    lines = [Text(f"{SITE_NAMES[site].capitalize()}: {label}{unit}", style="bold")]
    at_once = (GRID_WIDTH - 9) // 6
    for first in range(0, len(indices), at_once):
        shown = indices[first : first + at_once]
        name = "head" if site in SITES else "block"
        lines.append(Text(f"{name:>7}  " + "".join(f"{index:^6}" for index in shown)))
        for layer, heads in layers.items():
            line = Text(f"layer {layer:<3}")
            for index in shown:
                value = heads.get(index)
                if index not in heads:
                    line.append("      ")
                elif value is None:
                    line.append("  -   ")
                else:
                    line.append(f"{_short(value * scale):^6}", _shade(value, numbers))
            lines.append(line)
    lines.append(Text())
    return Group(*lines)


def grid(ranking: Ranking, column: str, site: str) -> dict[int, dict[int, float | None]]:
    """The values of a site by layer and index; None for heads without a value."""
    layers: dict[int, dict[int, float | None]] = {}
    for head in (h for h in ranking.heads if h.site == site):
        layers.setdefault(head.layer, {})[head.index] = ranking[column].get(head)
    return layers


def _reading(ranking: Ranking, column: str, site: str) -> str:
    """How to read a grid: its shades where there are any, and what its numbers are shares of."""
    shaded = results.color_system is not None and not results.no_color
    parts = ["Darker is more."] if shaded else []
    if column == LRP:
        kind = "heads" if site in SITES else "blocks"
        parts.append(
            "All shares of a stack add up to 1."
            if site in BLOCKS
            else f"Compare {kind} of one layer: its shares add up to 1."
        )
        normalise = ranking.about["lrp"]["normalise"]
        if normalise != LrpOptions.normalise:
            parts.append(f"Shares with --normalise {normalise}.")
    if site in BLOCKS:
        parts.append(f"Blocks: {', '.join(BLOCKS[site])}.")
    return " ".join(parts)


def _scale(numbers: Sequence[float]) -> tuple[float, str]:
    """A power of ten that makes numbers fit four characters, and its inverse in words."""
    largest = max((abs(v) for v in numbers), default=0.0)
    if largest == 0 or 0.1 <= largest < 100:
        return 1.0, ""
    exponent = math.floor(math.log10(largest))
    return 10.0**-exponent, f"1e{exponent}"


def _short(value: float) -> str:
    text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _shade(value: float, numbers: Sequence[float]) -> str:
    low, high = min(0.0, *numbers), max(numbers)
    share = (value - low) / (high - low) if high > low else 0.0
    number = min(len(SHADES) - 1, int(share * len(SHADES)))
    return f"{'white' if number > 2 else 'black'} on {SHADES[number]}"


def both_ends(ranking: Ranking, column: str, sites: Sequence[str]) -> Table:
    """The most and the least important heads of sites by a measure, with all others beside it."""
    names = _measured(ranking)
    table = _table(f"The {kinds_at(sites)} with the most and the least {column}", names)
    heads = [h for h in ranking.sort(column).heads if h.site in sites and h in ranking[column]]
    if column == LRP:  # a head that is alone in its layer has the whole share
        sizes = _layer_sizes(heads)
        heads = [h for h in heads if h.site in BLOCKS or sizes[h.site, h.layer] > 1]
    if len(heads) <= 2 * ENDS:
        return _add_heads(table, ranking, heads, names)
    _add_heads(table, ranking, heads[:ENDS], names)
    table.add_section()
    return _add_heads(table, ranking, heads[-ENDS:], names)


def _measured(ranking: Ranking) -> list[str]:
    """Columns without the random numbers."""
    return [name for name in ranking.columns if name != RANDOM]


def all_heads(ranking: Ranking, site: str) -> Table:
    """The heads of a site, layer by layer, in each layer the most important first."""
    main = next(iter(ranking.columns))
    names = list(ranking.columns)
    table = _table(
        f"{SITE_NAMES[site].capitalize()}: {kinds_at([site])} of each layer by {main}", names
    )
    heads = [head for head in ranking.sort(main).heads if head.site == site]
    for layer in sorted({head.layer for head in heads}):
        _add_heads(table, ranking, (head for head in heads if head.layer == layer), names)
        table.add_section()
    return table


def _add_heads(
    table: Table, ranking: Ranking, heads: Iterable[Head], names: Sequence[str]
) -> Table:
    for head in heads:
        cells = [ranking[name].get(head) for name in names]
        table.add_row(str(head), *(_number(v) for v in cells))
    return table


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.1e}"


def audit_table(ranking: Ranking) -> Group:
    """Where the relevance of a generation step went, 1 at its logit."""
    lrp = ranking.about["lrp"]
    table = _table(
        f"Relevance per step on its way down (rule {lrp['rule']}, layer norm {lrp['layer_norm']})"
    )
    table.add_column("station", no_wrap=True)
    for heading in ("arrived", "sum |R|", "max |R|", "to source", "to biases", "lost"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in ranking.audit:
        numbers = (row.arrived, row.magnitude, row.largest, row.to_source, row.bias, row.rest)
        table.add_row(row.station, *(f"{v:.4f}" if abs(v) < 1e4 else f"{v:.1e}" for v in numbers))
    legend = Text(
        "A station is the output of a layer. Each row's arrived is the next row's plus what went to"
        " the source, to biases, and was lost (to epsilon, or where there was nothing to share"
        " among). |R|: absolute relevance, summed over neurons, and the largest of one neuron."
    )
    return Group(table, legend)


def show_agreement(pairs: Sequence[Agreement], heads: Sequence[Head], full: bool) -> None:
    """Rank correlations: mean over layers, sites, all heads; with `full` also of each layer."""
    if pairs:
        shown = [pair for pair in pairs if full or not pair.group[-1].isdigit()]
        results.print(agreement_table(shown))
        results.print(
            "enc.* is the mean over the layers of enc, enc are all its heads. In brackets: 95 % of"
            " bootstrap samples of the sentences. p: how often heads in a random order agree as"
            " well; an interval alone does not show how few heads there are."
            f" {RANDOM}: {explain(RANDOM)}."
        )
    sizes = _layer_sizes(heads)
    small = [f"{site}.{layer}" for (site, layer), size in sizes.items() if size < MIN_HEADS]
    if small:
        results.print(
            f"No rank correlation within {', '.join(small)}: fewer than {MIN_HEADS} heads agree too"
            " often by chance."
        )


def _layer_sizes(heads: Iterable[Head]) -> Counter[tuple[str, int]]:
    """How many heads each layer of each site has."""
    return Counter((head.site, head.layer) for head in heads)


def agreement_table(pairs: Sequence[Agreement]) -> Table:
    """One row per group of heads and pair of measures."""
    table = _table("Rank correlations of measures")
    for heading in ("heads", "measures"):
        table.add_column(heading, no_wrap=True)
    for heading in ("Spearman", "Kendall", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    group = None
    for pair in pairs:
        if group not in (None, pair.group):
            table.add_section()
        group = pair.group
        table.add_row(
            pair.group,
            f"{pair.first} / {pair.second}",
            _correlation(pair.spearman, pair.spearman_interval),
            _correlation(pair.kendall, None),
            _chance(pair.p_value),
        )
    return table


def _correlation(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None:
        return "-"
    spread = "" if interval is None else f" ({interval[0]:+.2f}..{interval[1]:+.2f})"
    return f"{value:+.2f}{spread}"


def _chance(p: float | None) -> str:
    if p is None:
        return "-"
    return "<=0.001" if p <= 0.001 else f"{p:.3f}"


def remarks_on(ranking: Ranking) -> list[str]:
    """Remarks below the tables: sentences, steps, what could not be used."""
    about = ranking.about
    steps = f", {about['steps']} {about.get('asked', 'generation steps')}" if about["steps"] else ""
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


def _table(title: str, columns: Sequence[str] | None = None) -> Table:
    """A table, with `columns` one of heads."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, pad_edge=False)
    if columns is not None:
        table.add_column("head", no_wrap=True)
        for name in columns:
            table.add_column(name, justify="right")
    return table
