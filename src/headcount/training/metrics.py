"""`metrics.jsonl`: one line a logged step, appended as training goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from headcount.files import disk_errors, write_text

FILE = "metrics.jsonl"


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
        """Drop lines of later updates, and a last line that a kill left unfinished."""
        if self.enabled and self.path.exists():
            kept = [line for line in read_metrics(self.path) if line["update"] <= update]
            write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All complete lines of a metrics file."""
    lines: list[dict[str, Any]] = []
    if not path.exists():
        return lines
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return lines
