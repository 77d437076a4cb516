"""How the cost of training, LRP and roles grows, in time and in memory.

    python benchmarks/growth.py [--rounds 3]

A model of small-cpu's shape with 2 + 2 layers, untrained, on random tokens. One thing grows at a
time: the length of sentences, the number of sentences in a batch, the number of heads (of the same
width together, so that the arithmetic stays the same), the number of sentences in a corpus (batch
by batch). Time is the processor's, the least of some rounds in turns, as what is added by a busy
machine only ever adds; memory is the most bytes of tensors that are alive at once. The exponent is
that of the power law through the points: 1 is linear.

Results go to benchmarks/results/growth.json and growth.svg.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from live_memory import LiveMemory
from measuring import RESULTS, exponent, machine
from torch import Tensor

from headcount.cli import keep_freed_memory
from headcount.config import ModelConfig
from headcount.data.batches import Batch
from headcount.files import write_json
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.rules import LrpOptions
from headcount.role.counting import SiteCounts, SiteHeads
from headcount.role.kind import Setting
from headcount.role.rare_words import Frequencies
from headcount.role.sentences import ReadySentence, SentenceBatch
from headcount.training.objective import batch_losses

VOCABULARY = 8000
LENGTH, BATCH, HEADS = 16, 16, 8

# What grows, its sizes, and how the work must grow with it at least: attention is quadratic in the
# length, LRP follows every step down every position, and heads of one width cost what one costs.
SIZES = {
    "length": (8, 16, 32, 64),
    "batch": (8, 16, 32, 64),
    "heads": (2, 4, 8, 16),
    "corpus": (32, 64, 128, 256),
}
EXPECTED = {
    "training": {"length": 1, "batch": 1, "heads": 0, "corpus": 1},
    "LRP": {"length": 2, "batch": 1, "heads": 0, "corpus": 1},
    "roles": {"length": 1, "batch": 1, "heads": 0, "corpus": 1},
}
EXPECTED_MEMORY = {
    "training": {"length": 1, "batch": 1, "heads": 0, "corpus": 0},
    "LRP": {"length": 1, "batch": 1, "heads": 0, "corpus": 0},
    "roles": {"length": 1, "batch": 1, "heads": 0, "corpus": 0},
}


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    keep_freed_memory()
    results: dict[str, Any] = {"machine": machine(), "threads": 1, "rounds": options.rounds}
    for name, task in TASKS.items():
        results[name] = {grows: _grow(task, grows, options.rounds) for grows in SIZES}
        for grows, each in results[name].items():
            each["expected"] = EXPECTED[name][grows]
            each["expected_memory"] = EXPECTED_MEMORY[name][grows]
    write_json(options.out, results)
    _plot(results, options.out.with_suffix(".svg"))
    print(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "growth.json")
    return parser.parse_args()


Prepared = Callable[[], None]


def _grow(task: Callable[[Transformer, list[Batch]], Prepared], grows: str, rounds: int) -> Any:
    """Seconds and bytes at each size, and their exponents."""
    sizes = SIZES[grows]
    work = {size: _prepare(task, grows, size) for size in sizes}
    seconds = {size: float("inf") for size in sizes}
    for number in range(rounds + 1):
        for size, run in work.items():
            begin = time.process_time()
            run()
            if number:  # the first round warms up
                seconds[size] = min(seconds[size], time.process_time() - begin)
    memory = {}
    for size, run in work.items():
        with LiveMemory() as live:
            run()
        memory[size] = live.peak
    return {
        "sizes": sizes,
        "cpu_seconds": [round(seconds[size], 4) for size in sizes],
        "peak_mb": [round(memory[size] / 1e6, 2) for size in sizes],
        "exponent": exponent(sizes, list(seconds.values())),
        "memory_exponent": exponent(sizes, list(memory.values())),
    }


def _prepare(
    task: Callable[[Transformer, list[Batch]], Prepared], grows: str, size: int
) -> Prepared:
    chosen = {"length": LENGTH, "batch": BATCH, "heads": HEADS, "corpus": BATCH, grows: size}
    torch.manual_seed(1)
    config = ModelConfig(layers=2, heads=chosen["heads"], width=128, ff_width=512)
    model = Transformer(config, VOCABULARY, VOCABULARY)
    rng = torch.Generator().manual_seed(1)
    count = chosen["corpus"] // BATCH
    rows = chosen["batch"] if grows == "batch" else BATCH
    return task(model, [_batch(rows, chosen["length"], rng) for _ in range(count)])


def _batch(rows: int, length: int, rng: torch.Generator) -> Batch:
    """Random sentences of one length, EOS at their ends."""

    def tokens() -> Tensor:
        drawn = torch.randint(4, VOCABULARY, (rows, length), generator=rng)
        drawn[:, -1] = 3
        return drawn

    source, labels = tokens(), tokens()
    target_input = torch.cat([torch.full((rows, 1), 2), labels[:, :-1]], 1)
    return Batch(
        source, target_input, labels, torch.arange(rows).numpy(), rows * length, rows * length
    )


def _training(model: Transformer, batches: list[Batch]) -> Prepared:
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.0, fused=True)

    def run() -> None:
        for batch in batches:
            optimiser.zero_grad()
            batch_losses(model, batch, 0.1).smoothed.backward()
            optimiser.step()
        optimiser.zero_grad()

    return run


def _lrp(model: Transformer, batches: list[Batch]) -> Prepared:
    propagation = Propagation(model.eval(), LrpOptions())

    def run() -> None:
        for batch in batches:
            recording = propagation.record(batch.source, batch.target_input)
            propagation.propagate(recording, [batch.target_input.shape[1]] * len(batch.source))

    return run


def _roles(model: Transformer, batches: list[Batch]) -> Prepared:
    model.eval()
    heads = SiteHeads.of(model.heads, "enc")
    frequencies = Frequencies.of(torch.arange(VOCABULARY).numpy(), {0, 2, 3})
    ready = [_sentences(batch) for batch in batches]

    @torch.inference_mode()
    def run() -> None:
        counts = SiteCounts(heads, Setting(128, frequencies=frequencies))
        for batch in ready:
            with record(model, {"weights"}, {"enc"}) as recording:
                model.encode(batch.source)
            counts.add(batch, {layer: recording["enc", layer, "weights"] for layer in heads.layers})

    return run


def _sentences(batch: Batch) -> SentenceBatch:
    sentences = [
        ReadySentence(number, row[:-1], None, [])
        for number, row in enumerate(batch.source.tolist())
    ]
    return SentenceBatch.of(sentences, pad=0, eos=3)


TASKS = {"training": _training, "LRP": _lrp, "roles": _roles}


def _plot(results: dict[str, Any], path: Path) -> None:
    """Time above, memory below, one column for each thing that grows."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    rows = (("cpu_seconds", "exponent", "CPU seconds"), ("peak_mb", "memory_exponent", "MB alive"))
    figure, axes = plt.subplots(2, len(SIZES), figsize=(13, 6), layout="constrained")
    for column, grows in enumerate(SIZES):
        for row, (values, power, label) in enumerate(rows):
            axis = axes[row][column]
            for name in TASKS:
                each = results[name][grows]
                axis.loglog(
                    each["sizes"], each[values], marker="o", label=f"{name}: {each[power]:+.2f}"
                )
            axis.set_xticks(SIZES[grows], [str(size) for size in SIZES[grows]], minor=False)
            axis.minorticks_off()
            axis.set_xlabel(grows)
            axis.set_ylabel(label if column == 0 else "")
            axis.legend(title="exponent", fontsize=8, title_fontsize=8)
            axis.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
