"""Gates over training as a small animation, as the authors have shown it: one cell per head."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from headcount.files import atomic_path
from headcount.heads import Head
from headcount.study.results import GateHistory, StudyModel

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
