"""Draw what the heads of an encoder do: a grid of its heads, and the best one for each relation.

headcount roles RUN --conllu en_ewt-ud-dev.conllu.gz --relations all
python tools/encoder_figure.py RUN OUT.svg
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from headcount.heads import Head
from headcount.role import ROLES
from headcount.role.result import Roles

LEAST, MARGIN = 100, 0.05
"""Relations with fewer instances, or no head so far above the baseline, are not drawn."""


def main() -> None:
    """Read the roles of a run and draw them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    roles = Roles.load(arguments.run / "analysis" / "roles.json")
    figure = Figure(figsize=(10, 5), layout="constrained")
    grid, bars = figure.subplots(1, 2, width_ratios=(1.25, 1))
    draw_grid(grid, roles)
    draw_relations(bars, roles)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, metadata={"Date": None})
    write_table(arguments.out.with_suffix(".csv"), roles)


def write_table(path: Path, roles: Roles) -> None:
    """The best head for each form of each role."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["role", "name", "head", "instances", "score", "low", "high", "baseline"])
        for line in roles.best:
            numbers = (line.score.value, line.score.low, line.score.high, line.baseline.value)
            shown = ["" if number is None else f"{number:.4f}" for number in numbers]
            writer.writerow([line.kind, line.name, line.head or "", line.instances, *shown])


def draw_grid(axes: Axes, roles: Roles) -> None:
    """One cell per head, coloured by its role; the number is its confidence in per cent."""
    used = set()
    for head, head_roles in roles.heads.items():
        kind = head_roles.roles[0].kind if head_roles.roles else None
        used.add(kind)
        colour = ROLES[kind].colour if kind else "#e8e8e8"
        axes.add_patch(Rectangle((head.index, head.layer), 0.94, 0.9, color=colour))
        name = head_roles.roles[0].name if head_roles.roles and kind == "positional" else ""
        text = f"{100 * (head_roles.confidence or 0):.0f}\n{name}".strip()
        axes.text(
            head.index + 0.47,
            head.layer + 0.45,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color=ROLES[kind].text_colour if kind else "#444444",
        )
    layers = max(head.layer for head in roles.heads) + 1
    heads = max(head.index for head in roles.heads) + 1
    axes.set(xlim=(0, heads), ylim=(layers, 0), xlabel="head", ylabel="layer")
    axes.set_xticks([i + 0.47 for i in range(heads)], [str(i) for i in range(heads)])
    axes.set_yticks([i + 0.45 for i in range(layers)], [str(i) for i in range(layers)])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    shown = [kind for kind in ROLES if kind in used]
    axes.legend(
        [Patch(color=ROLES[kind].colour) for kind in shown],
        shown,
        loc="lower center",
        bbox_to_anchor=(0.5, 1.0),
        ncols=len(shown),
        frameon=False,
    )


def draw_relations(axes: Axes, roles: Roles) -> None:
    """The best head for each relation and direction that one reaches, above its baseline."""
    lines = [
        line
        for line in roles.relations
        if line.instances >= LEAST and (line.margin.value or 0) > MARGIN and line.head is not None
    ]
    lines.sort(key=lambda line: line.margin.value or 0)
    for place, line in enumerate(lines):
        score, base = line.score.value or 0.0, line.baseline.value or 0.0
        axes.barh(place, 100 * score, color=ROLES["syntactic"].colour, height=0.7)
        axes.plot([100 * base] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    names = [f"{line.name}  ({_short(line.head)})" for line in lines]
    axes.set_yticks(range(len(lines)), names, fontsize=8)
    axes.set(xlim=(0, 100), xlabel="best head, accuracy in % (line: fixed offset)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _short(head: Head | None) -> str:
    return "" if head is None else f"{head.layer}.{head.index}"


if __name__ == "__main__":
    main()
