"""What `headcount prune` and `prune-sweep` print: plans, results, tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from headcount.pruning.plan import Plan
    from headcount.run import Run


MEASURABLE = 1.02
"""A ceiling below this is within what timing is off by."""


def plan_table(plan: Plan, title: str) -> Table:
    """One row per site, and one for all of them together."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    # Broken by hand, so that all of it fits 80 columns.
    for name in (
        "have",
        "keep",
        "parameters",
        "multiply-\nadds",
        "speed",
        "at\nmost",
        "by\ncounts",
    ):
        table.add_column(name, justify="right")
    for row in plan.rows:
        table.add_row(
            row.site,
            str(row.have),
            "" if row.keep is None else str(row.keep),
            *(
                "" if row.keep is None else f"{-share:.1%}"
                for share in (row.parameters, row.products)
            ),
            "" if row.keep is None else f"{row.speedup:.2f}x",
            f"{row.ceiling:.2f}x",
            f"{row.product_ceiling:.2f}x",
        )
    return table


def plan_lines(plan: Plan) -> str:
    """Below the table: how it was measured, and whether a speed that was asked for is possible."""
    from headcount.pruning.timed import ASK_FOR_LESS

    costs, together = plan.costs, plan.rows[-1]
    lines = [
        f"{costs.engine}, batch {costs.batch}, beam {costs.beam}: {1e3 * costs.full:.2f} ms per"
        f" sentence now; predictions of half of everything are {costs.error:+.0%} off. At most: if"
        " all of it went, predicted, and if only multiply-adds counted."
    ]
    if together.ceiling < MEASURABLE:
        lines.append(
            "The model without anything at these sites was hardly faster than the whole one: they"
            " cost little time here, or other work on the machine hid it. On an idle machine the"
            " plan is more exact."
        )
    if plan.asked is not None and plan.percent is None:
        lines.append(
            f"{plan.asked:g} times as fast is out of reach: without anything at these sites the"
            f" model is {together.ceiling:.2f} times as fast. {ASK_FOR_LESS}"
        )
    elif plan.asked is not None:
        lines.append(
            f"{plan.asked:g} times as fast can be reached: an even pruning may keep up to"
            f" {plan.percent} % of everything; rounded down at each site, that is the column keep."
            " --speedup chooses for itself what to keep."
        )
    return "\n".join(lines)


def summary(run: Run, record: dict[str, Any]) -> str:
    """The result in a few lines: the heads that are left, quality, size."""
    from headcount.heads import SITES as ATTENTION
    from headcount.heads import kinds_at
    from headcount.pruning.record import quality

    full, sites = record["baseline"]["heads"], record["settings"]["sites"]
    lines = [f"{run.folder}: {kinds_at(sites)} left"]
    for site, layers in record["heads"].items():
        if not layers or site not in (*ATTENTION, *sites):
            continue
        lines.append(f"{site:6}  {sum(map(len, layers))} of {sum(map(len, full[site]))}")
        if site in sites:
            lines += [
                f"  layer {number}: {_left(run, site, indices)}"
                for number, indices in enumerate(layers)
            ]
    for name in ("before", "after"):
        if name in record:
            lines.append(f"{name:6}  {quality(record[name])}")
    if record.get("speed"):
        speed = record["speed"]
        lines.append(
            f"speed   {speed['measured']:.2f} times as fast (asked for {speed['asked']:g}, promised"
            f" {speed['promised']:.2f}): {speed['engine']}, batch {speed['batch']},"
            f" beam {speed['beam']}"
        )
    before, after = record["baseline"]["parameters"], record["parameters"]
    lines.append(f"{after} parameters, {1 - after / before:.1%} fewer")
    return "\n".join(lines)


def _left(run: Run, site: str, indices: list[int]) -> str:
    """What a layer has left: heads by number, blocks by name, units by how many they are."""
    from headcount.heads import BLOCKS, UNIT_SITES

    if site in UNIT_SITES:
        config = run.config.model
        units = sum(len(config.units_of(site, index)) for index in indices)
        return f"{len(indices)} blocks, {units} of {config.ff_width_at(site)} units"
    names = [BLOCKS[site][i] for i in indices] if site in BLOCKS else map(str, indices)
    return " ".join(names) or "none"


def sweep_table(rows: list[dict[str, Any]]) -> Table:
    """The sweep as a table; below the heads of a site those of each layer."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from headcount.pruning.sweep import pruned_sites

    table = Table(box=SIMPLE_HEAD, padding=0, pad_edge=False)
    table.add_column("pruning", no_wrap=True)
    numbers = ("BLEU", "chrF", "dev loss", "M params", "ms/sentence")
    sites = pruned_sites(rows)
    timed = ["measured\n(promised)"] if any(row["asked"] is not None for row in rows) else []
    for name in (*sites, *numbers, *timed):
        table.add_column(f"  {name}", justify="right")
    for row in rows:
        heads = [
            f"{sum(map(len, layers))}\n  {' '.join(str(len(layer)) for layer in layers)}"
            for layers in (row["heads"][site] for site in sites)
        ]
        table.add_row(
            row["name"],
            *heads,
            f"{row['bleu']:.2f}\n±{row['bleu_interval']:.2f}",
            f"{row['chrf']:.2f}",
            "" if row["dev_loss"] is None else f"{row['dev_loss']:.4f}",
            f"{row['parameters'] / 1e6:.2f}",
            f"{1e3 * row['seconds_per_sentence']:.1f}",
            *(_speed(row) for _ in timed),
        )
    return table


def _speed(row: dict[str, Any]) -> str:
    """Times as fast as the baseline, where that was asked for."""
    if row["asked"] is None:
        return ""
    return f"{row['measured']:.2f}x\n({row['promised']:.2f}x)"
