"""The table and the figure of benchmarks/faster.py."""

from __future__ import annotations

from itertools import product
from typing import Any

from headcount.bench.speed_figure import Point, draw_speeds
from headcount.heads import ALL_SITES
from headcount.picture import Picture

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


def draw(result: dict[str, Any], beam: int) -> Picture:
    """BLEU against sentences per second: a panel for each engine and batch."""
    rows = [row for row in result["rows"] if row["beam"] == beam]
    engines = list({row["engine"]: 0 for row in rows})
    batches = sorted({row["batch"] for row in rows})
    places = [f"{engine}, batch {batch}" for batch, engine in product(batches, engines)]
    points = []
    for row in rows:
        alone = row["kind"] in ("full", "control", "rival")
        points.append(
            Point(
                f"{row['engine']}, batch {row['batch']}",
                row["sentences_per_second"],
                row["bleu"],
                " ".join(filter(None, (row["kind"], row["way"]))),
                COLOURS.get(row["kind"], "#222222"),
                "*" if alone else MARKS.get(row["way"], "P"),
                row["bleu_interval"],
            )
        )
    points.sort(key=lambda point: places.index(point.panel))
    return draw_speeds(points, len(engines))
