"""One revision of headcount, by its public functions alone: `with_revision.py RUN TEXT RECIPE`.

Tasks: `lrp`, the relevance of all heads of a run; `train`, a short training from a recipe.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from serving import serve

import headcount

SENTENCES = 60


def main() -> None:
    run, text, recipe = sys.argv[1:]

    def lrp() -> dict[str, Any]:
        headcount.rank(run, text, by="lrp", sentences=SENTENCES)
        return {}

    def train() -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            headcount.train(recipe, Path(folder) / "run")
            lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
        losses = [line["loss"] for line in map(json.loads, lines) if line["kind"] == "train"]
        return {"loss": losses[-1]}

    serve({"lrp": lrp, "train": train}, ["torch"])


if __name__ == "__main__":
    main()
