"""The table and the figure of benchmarks/faster.py."""

from __future__ import annotations

from itertools import product
from typing import Any

from headcount.heads import ALL_SITES

COLOURS = {
    "control": "#999999",
    "heads": "#0072b2",
    "units": "#009e73",
    "blocks": "#d55e00",
    "shape": "#e6ab02",
    "rival": "#cc79a7",
}
MARKS = {"": "o", "distil": "D", "sequence": "s", "random": "x", "distil-random": "+"}


def table(result: dict[str, Any]) -> str:
    """One line per model, beam and engine; speeds for each batch."""
    rows = result["rows"]
    batches = sorted({row["batch"] for row in rows})
    heads = [f"sentences/s, batch {batch}" for batch in batches]
    titles = ["beam", "engine", "model", "BLEU", "against full", *heads, "parameters"]
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    beams, engines = ({row[name]: 0 for row in rows} for name in ("beam", "engine"))
    for beam, engine in product(beams, engines):
        own = [row for row in rows if (row["beam"], row["engine"]) == (beam, engine)]
        for model in {row["model"]: 0 for row in own}:
            each = [row for row in own if row["model"] == model]
            row, gap = each[0], each[0]["difference"]
            cells = [str(beam), engine, model, f"{row['bleu']:.2f} ± {row['bleu_interval']:.2f}"]
            against = f"{gap['value']:+.2f} ({gap['low']:+.2f} to {gap['high']:+.2f})"
            cells.append("" if model == "full" else against)
            for batch in batches:
                timed = next(row for row in each if row["batch"] == batch)
                cells.append(f"{timed['sentences_per_second']:.0f} ({timed['faster']:.2f}x)")
            cells.append(f"{row['parameters'] / 1e6:.2f} M")
            lines.append(f"| {' | '.join(cells)} |")
    left = ["", "| model | " + " | ".join(ALL_SITES) + " | asked | promised | measured |"]
    left.append("|" + "---|" * (len(ALL_SITES) + 4))
    for model in {row["model"]: 0 for row in rows}:
        row = next(row for row in rows if row["model"] == model)
        numbers = [str(row["left"][site]) for site in ALL_SITES]
        speed = result["promises"].get(model) or {}
        said = [f"{speed[k]:.2f}" if k in speed else "" for k in ("asked", "promised", "measured")]
        left.append(f"| {' | '.join([model, *numbers, *said])} |")
    notes = [f"- {note}" for note in result["notes"]]
    return "\n".join([*lines, *left, "", *notes]) + "\n"


def draw(result: dict[str, Any], beam: int) -> Any:
    """BLEU against sentences per second: a panel for each engine and batch."""
    from headcount.picture import Picture

    rows = [row for row in result["rows"] if row["beam"] == beam]
    engines = list({row["engine"]: 0 for row in rows})
    batches = sorted({row["batch"] for row in rows})
    size = (3.4 * len(engines), 2.9 * len(batches))
    figure = Picture(figsize=size, layout="constrained")
    axes = figure.subplots(len(batches), len(engines), squeeze=False, sharey=True)
    for (place, batch), (column, engine) in product(enumerate(batches), enumerate(engines)):
        panel = axes[place][column]
        for row in rows:
            if (row["engine"], row["batch"]) != (engine, batch):
                continue
            colour = COLOURS.get(row["kind"], "#222222")
            alone = row["kind"] in ("full", "control", "rival")
            mark = "*" if alone else MARKS.get(row["way"], "P")
            x, y = row["sentences_per_second"], row["bleu"]
            panel.errorbar(x, y, yerr=row["bleu_interval"], color=colour, lw=0.5, alpha=0.4)
            label = " ".join(filter(None, (row["kind"], row["way"])))
            panel.plot(x, y, mark, color=colour, ms=6, label=label)
        panel.set_title(f"{engine}, batch {batch}", fontsize=8)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.2)
    for panel in axes[-1]:
        panel.set_xlabel("sentences per second", fontsize=8)
    for panel in axes[:, 0]:
        panel.set_ylabel("BLEU", fontsize=8)
    handles, labels = axes[0][0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(
        unique.values(),
        unique.keys(),
        loc="outside lower center",
        ncols=6,
        fontsize=7,
        frameon=False,
    )
    return figure
