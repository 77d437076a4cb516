"""Draw docs/architecture.svg: the way of one sentence through the package.

python tools/draw_architecture.py
"""

from __future__ import annotations

from pathlib import Path

WAYS = {
    "to an update": (
        "#4c72b0",
        ["data/corpora", "data/cleaning", "data/tokenizer", "data/shards", "data/batches"],
        ["model/transformer", "training/objective", "training/loop"],
        "a run",
    ),
    "to a relevance": (
        "#dd8452",
        ["ranking/measuring", "model/decoding", "model/recording"],
        ["ranking/lrp/propagate", "ranking/lrp/rules", "ranking/lrp/relevance", "ranking/rank"],
        "head table: lrp",
    ),
    "to a role": (
        "#55a868",
        ["role/parses", "role/alignment", "model/recording"],
        ["role/counting", "role/syntactic", "role/head_roles", "role/analysis"],
        "roles.json",
    ),
    "to a pruned run": (
        "#c44e52",
        ["pruning/methods", "pruning/gates", "model/gating"],
        ["training/loop", "pruning/process", "model/gating"],
        "a smaller run",
    ),
    "to a cell of the report": (
        "#8172b3",
        ["study/plan", "study/score_model", "study/results"],
        ["study/claims/verdict", "study/study_tables", "study/report/page"],
        "report.html",
    ),
}
"""Each way: its colour, its modules in two rows, and its result."""
STARTS = (
    "a corpus",
    "the run,\na sentence",
    "the run, its\nparsed text",
    "the run,\nits corpus",
    "all runs",
)
PICTURE = Path(__file__).parents[1] / "docs" / "architecture.svg"
WIDTH, HEIGHT, LANE = 11.0, 7.6, 1.5  # inches, which are also the units of the axes


def modules() -> list[str]:
    """All modules that the picture names, such as `data/corpora`."""
    return [name for _, first, second, _ in WAYS.values() for name in (*first, *second)]


def draw(path: Path) -> None:
    """Write the picture as SVG; the same file every time."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "headcount", "font.size": 9})
    figure = plt.figure(figsize=(WIDTH, HEIGHT), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(0, HEIGHT))
    axes.axis("off")

    def box(x: float, y: float, width: float, text: str, colour: str, filled: bool) -> None:
        axes.annotate(
            text,
            (x + width / 2, y),
            ha="center",
            va="center",
            color="white" if filled else "#222222",
            weight="bold" if filled else "normal",
        )
        axes.add_patch(
            mpl.patches.FancyBboxPatch(
                (x, y - 0.2),
                width,
                0.4,
                boxstyle="round,pad=0.03,rounding_size=0.08",
                facecolor=colour if filled else "white",
                edgecolor=colour,
                zorder=0,
            )
        )

    def arrow(start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
        axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.2})

    for lane, ((title, (colour, first, second, end)), start) in enumerate(
        zip(WAYS.items(), STARTS, strict=True)
    ):
        top = HEIGHT - 0.5 - lane * LANE
        axes.text(0.12, top + 0.3, f"{lane + 1}. {title}", color=colour, weight="bold")
        axes.text(0.12, top - 0.38, start, color="#222222", va="center")
        for row, names in enumerate((first, second)):
            y = top - row * 0.66
            step = 7.3 / len(names)
            for place, name in enumerate(names):
                x = 1.75 + place * step
                box(x, y, step - 0.28, name, colour, filled=False)
                if place:
                    arrow((x - 0.27, y), (x - 0.02, y), colour)
        arrow((1.25, top - 0.3), (1.7, top - 0.05), colour)
        axes.plot(
            [8.85, 9.0, 9.0, 1.6, 1.6],
            [top, top, top - 0.33, top - 0.33, top - 0.66],
            color=colour,
            lw=1.2,
        )
        arrow((1.6, top - 0.66), (1.74, top - 0.66), colour)
        arrow((8.8, top - 0.66), (9.3, top - 0.66), colour)
        box(9.35, top - 0.66, 1.5, end, colour, filled=True)
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(PICTURE)
