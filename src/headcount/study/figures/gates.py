"""Figure 6: the distribution of gates, and gates while a model is pruned (Sec. 6.1)."""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from headcount.files import atomic_path
from headcount.heads import Head
from headcount.pruning.gates import HardConcrete
from headcount.pruning.methods import method_named
from headcount.study.cases import is_learned
from headcount.study.figures.drawing import (
    FAINT,
    INK,
    SERIES,
    Drawing,
    open_frame,
    panels_in_a_row,
    series_style,
    style,
)
from headcount.study.results import GateHistory, StudyModel, StudyResults
from headcount.study.tables import Cell

POINTS = 400
LOGITS = (-2.0, 0.0, 2.0)
SHOWN = 0.5
"""The logit at which panel (a) compares the Concrete with the Hard Concrete distribution."""


def gates_figure(results: StudyResults) -> Drawing | None:
    """Figure 6: densities, and gates over training, where a model was pruned with gates."""
    model = watched_model(results)
    if model is None:
        return None
    figure, rows = _panels(model, phone=False)
    return Drawing(
        "fig6-gates",
        "Figure 6",
        "Concrete distribution: (a) Concrete and its stretched and rectified version (Hard"
        " Concrete), with its mass at 0 and 1; (b) Hard Concrete distributions with different"
        f" parameters. (c) Probability that each gate is open while {model.id} is pruned.",
        figure,
        rows,
        alt="Densities of the Concrete and Hard Concrete distributions; lines of gates that close"
        " or stay open during training.",
        phone=_panels(model, phone=True)[0],
    )


def _panels(model: StudyModel, phone: bool) -> tuple[Figure, list[dict[str, Cell]]]:
    with style():
        figure, panels = panels_in_a_row(3, 2.05, phone=phone)
        rows = _concrete(panels[0]) + _family(panels[1]) + _over_training(panels[2], model)
    return figure, rows


def watched_model(results: StudyResults) -> StudyModel | None:
    """The model whose gates are shown: encoder pruning to about a fifth of the heads, if any."""
    models = [m for m in results.models if m.gates is not None and is_learned(m)]
    if not models:
        return None

    def distance(model: StudyModel) -> tuple[bool, float]:
        assert model.gates is not None
        share = model.heads.count("enc") / max(1, len(model.gates.heads))
        return model.sites != ("enc",), abs(share - 0.2)

    return min(models, key=distance)


def _concrete(axes: Axes) -> list[dict[str, Cell]]:
    """Panel (a)."""
    hard, plain = HardConcrete(), HardConcrete(low=0.0, high=1.0)
    masses = _mass_axis(axes)
    rows: list[dict[str, Cell]] = []
    for number, (name, family) in enumerate((("Concrete", plain), ("Hard Concrete", hard))):
        rows += _density(axes, family, SHOWN, name, series_style(number)[0], name)
    rows += _masses(masses, hard, SHOWN, series_style(1)[0], "Hard Concrete")
    _finish(axes, "(a)")
    return rows


def _family(axes: Axes) -> list[dict[str, Cell]]:
    """Panel (b)."""
    masses = _mass_axis(axes)
    rows: list[dict[str, Cell]] = []
    for number, logit in enumerate(LOGITS):
        colour = SERIES[number]
        sign = "−" if logit < 0 else ""
        label = f"φ = {sign}{abs(logit):g}"
        rows += _density(axes, HardConcrete(), logit, label, colour, "Hard Concrete")
        rows += _masses(masses, HardConcrete(), logit, colour, "Hard Concrete", number - 1)
    _finish(axes, "(b)")
    return rows


def _density(
    axes: Axes, family: HardConcrete, logit: float, label: str, colour: str, name: str
) -> list[dict[str, Cell]]:
    """The continuous part, between 0 and 1."""
    gates = torch.linspace(0, 1, POINTS + 2, dtype=torch.float64)[1:-1]
    density = family.density(torch.full_like(gates, logit), gates)
    axes.plot(gates, density, color=colour, label=label)
    pairs = list(zip(gates.tolist(), density.tolist(), strict=True))[::8]
    return [
        {"panel": name, "logit": logit, "gate": gate, "density": value} for gate, value in pairs
    ]


def _masses(
    axes: Axes, family: HardConcrete, logit: float, colour: str, name: str, shift: int = 0
) -> list[dict[str, Cell]]:
    """The probabilities of exactly 0 and exactly 1, as stems."""
    value = torch.tensor(logit, dtype=torch.float64)
    masses = {0: float(family.zero_probability(value)), 1: float(family.one_probability(value))}
    for place, mass in masses.items():
        x = place + 0.03 * shift
        axes.plot([x, x], [0, mass], color=colour, lw=1, ls=(0, (2, 1)))
        axes.plot([x], [mass], marker="o", ms=3.5, color=colour, clip_on=False)
    return [
        {"panel": f"{name}, mass", "logit": logit, "gate": float(place), "density": mass}
        for place, mass in masses.items()
    ]


def _mass_axis(axes: Axes) -> Axes:
    """A second scale at the right, for probabilities."""
    other = axes.twinx()
    other.set_ylim(0, 1)
    other.set_ylabel("probability (dots)", color=INK)
    other.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    other.spines[["top", "left"]].set_visible(False)
    return other


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel("gate")
    axes.set_ylabel("density")
    axes.set_ylim(0, 4)
    axes.set_yticks([0, 1, 2, 3, 4])
    axes.set_xlim(-0.08, 1.08)
    axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    axes.legend(loc="upper center", handlelength=1.2)
    open_frame(axes)


def _over_training(axes: Axes, model: StudyModel) -> list[dict[str, Cell]]:
    """Panel (c): one line per head."""
    gates = model.gates
    assert gates is not None
    kept = set(model.heads.heads())
    for number, head in enumerate(gates.heads):
        line = [row[number] for row in gates.probabilities]
        colour, order = (SERIES[0], 3) if head in kept else (FAINT, 2)
        axes.plot(gates.updates, line, color=colour, lw=0.7, alpha=0.8, zorder=order)
    for colour, name in ((SERIES[0], "stays"), (FAINT, "pruned")):
        axes.plot([], [], color=colour, label=f"head {name}")
    axes.set_title("(c)", loc="left")
    axes.set_title(method_named(str(model.method)).label, fontsize=7, color=INK)
    axes.set_xlabel("update")
    axes.set_ylabel("P(gate open)")
    axes.set_ylim(-0.03, 1.03)
    axes.legend(
        loc="center right", frameon=True, facecolor="white", framealpha=0.9, edgecolor="none"
    )
    open_frame(axes)
    return [
        {"panel": model.id, "head": str(head), "update": update, "open_probability": row[number],
         "kept": int(head in kept)}
        for number, head in enumerate(gates.heads)
        for update, row in zip(gates.updates, gates.probabilities, strict=True)
    ]  # fmt: skip


CELL, GAP, LEFT, TOP, BOTTOM = 26, 3, 58, 10, 26
FRAMES = 40
MILLISECONDS = 120
HOLD = 15
"""How many times longer the last frame stays."""

_CLOSED, _OPEN = (236, 238, 241), (0, 114, 178)


def write_gate_animation(model: StudyModel, path: Path) -> None:
    """Write a GIF: rows are layers, cells heads, the darker the likelier to be open."""
    if model.gates is None:
        raise ValueError(f"{model.id} has no log of gates")
    frames = [_frame(model.gates, time) for time in frame_times(model.gates)]
    with atomic_path(path) as partial:
        frames[0].save(
            partial,
            format="GIF",
            save_all=True,
            append_images=frames[1:],
            duration=[MILLISECONDS] * (len(frames) - 1) + [MILLISECONDS * HOLD],
            loop=0,
        )


def frame_times(gates: GateHistory) -> list[int]:
    """Indices into the history, evenly spread, including the first and the last."""
    last = len(gates.updates) - 1
    count = min(FRAMES, last + 1)
    return [round(number * last / max(1, count - 1)) for number in range(count)]


def _frame(gates: GateHistory, time: int) -> Image.Image:
    rows = _rows(gates.heads)
    columns = max(len(row) for row in rows)
    width = LEFT + columns * (CELL + GAP) + GAP
    height = TOP + len(rows) * (CELL + GAP) + BOTTOM
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=12)
    place = {head: number for number, head in enumerate(gates.heads)}
    for i, row in enumerate(rows):
        top = TOP + i * (CELL + GAP)
        pen.text((6, top + 6), f"{row[0].site} {row[0].layer}", fill="#444444", font=font)
        for j, head in enumerate(row):
            left = LEFT + j * (CELL + GAP)
            colour = _mixed(gates.probabilities[time][place[head]])
            pen.rounded_rectangle((left, top, left + CELL, top + CELL), 4, fill=colour)
    done = f"update {gates.updates[time]}"
    pen.text((LEFT, height - BOTTOM + 5), done, fill="#222222", font=font)
    return image


def _rows(heads: tuple[Head, ...]) -> list[list[Head]]:
    """Heads by site and layer."""
    rows: dict[tuple[str, int], list[Head]] = {}
    for head in heads:
        rows.setdefault((head.site, head.layer), []).append(head)
    return list(rows.values())


def _mixed(probability: float) -> tuple[int, int, int]:
    mixed = [round(a + (b - a) * probability) for a, b in zip(_CLOSED, _OPEN, strict=True)]
    return mixed[0], mixed[1], mixed[2]
