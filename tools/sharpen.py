"""Would a sharper head be a better one? The dev loss of a run whose heads look more sharply.

    python tools/sharpen.py RUN HEAD [HEAD ...] --data CORPUS

Attention weights `w` of a head become `w^p`, normalised: a power of 1 changes nothing, with 8 a
head looks at hardly more than one token. If the loss falls, training has not got there yet; if it
rises, the model uses what the head sees besides. CORPUS is a corpus folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from headcount.distribution import Workers
from headcount.heads import Head
from headcount.model.recording import edit_places
from headcount.run import load_run
from headcount.training.metrics import dev_loss
from headcount.training.preparation import prepare_training

POWERS = (1.0, 1.5, 2.0, 8.0)


def main() -> None:
    """Print one row per head."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("heads", nargs="+", type=Head.parse)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    run = load_run(arguments.run)
    own = run.model.heads
    unknown = [str(head) for head in arguments.heads if head not in own.heads()]
    if unknown:
        parser.error(f"the run has no head {', '.join(unknown)}")
    # A pruned layer has no rows for the heads that it has lost.
    rows = {head: own.layers[head.site][head.layer].index(head.index) for head in arguments.heads}
    data = run.config.data.model_copy(update={"folder": arguments.data})
    dev = prepare_training(data, run.config.training, lambda *state: None, run.folder).dev
    print("| head | " + " | ".join(f"power {power:g}" for power in POWERS) + " |")
    print("|---" * (len(POWERS) + 1) + "|")
    for head, row in rows.items():
        cells = []
        for power in POWERS:
            place = f"{head.site}.{head.layer}.weights"
            with edit_places(run.model, place, sharper(row, power)):
                cells.append(f"{dev_loss(run.model, dev, run.target_tokenizer, Workers()):.4f}")
        print(f"| `{head}` | {' | '.join(cells)} |", flush=True)


def sharper(row: int, power: float) -> Callable[[Tensor], Tensor]:
    """Weights `[batch, heads, queries, keys]` with those of one row of heads to the power."""

    def change(weights: Tensor) -> Tensor:
        raised = weights[:, row] ** power
        changed = weights.clone()
        changed[:, row] = raised / raised.sum(-1, keepdim=True)
        return changed

    return change


if __name__ == "__main__":
    main()
