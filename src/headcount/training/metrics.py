"""`metrics.jsonl`: one line per logged step; TensorBoard beside it where the extra is installed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.files import disk_errors, parsing, write_text

FILE = "metrics.jsonl"
FINAL = "final"
"""The kind of the last line: what the finished model is like."""


class MetricsLog:
    """Appends lines; after a kill it is cut back to the checkpoint that training resumes from."""

    def __init__(self, path: Path, enabled: bool = True) -> None:
        self.path = path
        self.enabled = enabled

    def write(self, line: dict[str, Any]) -> None:
        """Append one line."""
        if not self.enabled:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with disk_errors(self.path), self.path.open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(line) + "\n")

    def cut_after(self, update: int) -> None:
        """Drop lines of later updates, a last line that a kill left unfinished, and the final one.

        Training writes them again, so that an interruption leaves no trace here.
        """
        if self.enabled and self.path.exists():
            kept = [
                line
                for line in read_metrics(self.path)
                if line["update"] <= update and line["kind"] != FINAL
            ]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file; a last one that was never finished is left out."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    with parsing(path):
        texts = path.read_text(encoding="utf-8").split("\n")
        for number, text in enumerate(texts[:-1], start=1):
            try:
                line = json.loads(text)
            except RecursionError as error:
                raise ValueError(f"line {number} is nested too deeply") from error
            sound = isinstance(line, dict) and isinstance(line.get("kind"), str)
            if not sound or type(line.get("update")) is not int:
                raise ValueError(f"line {number} has no kind and update")
            lines.append(line)
    return lines


@contextmanager
def tensorboard_observer(folder: Path, wanted: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that passes logged numbers on to TensorBoard; a no-op where it is not wanted."""
    if not wanted:
        yield lambda line: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError(
            "TensorBoard is not installed.", "pip install 'headcount[tensorboard]'"
        ) from error
    writer = SummaryWriter(str(folder / "tensorboard"))
    try:

        def write(line: dict[str, Any]) -> None:
            for name, value in line.items():
                if isinstance(value, int | float) and name != "update":
                    writer.add_scalar(f"{line['kind']}/{name}", value, line["update"])

        yield write
    finally:
        writer.close()
