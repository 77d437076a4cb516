"""Does the formula of `headcount train --estimate` hold? Predicted against measured, here.

    python benchmarks/estimate.py [--rounds 5]

One training step of models of several sizes on the CPU, in turns with a product of large matrices,
which is the machine's peak. Seconds are the processor's. The efficiency is that of the middle
size; with it the formula predicts the others. Memory is what is alive at the peak of the step
besides weights and Adam's means. The table goes into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from live_memory import LiveMemory
from measuring import machine

from headcount.bench.estimate import estimate, training_bytes
from headcount.cli import keep_freed_memory
from headcount.config import Config, ModelConfig
from headcount.data.batches import Batch
from headcount.model.arithmetic import count_parameters
from headcount.model.transformer import Transformer
from headcount.training.objective import batch_losses

VOCABULARY, SENTENCES, LENGTH = 4000, 20, 25
WIDTHS = (128, 256, 512)
MATRIX = 1024


def step_of(width: int) -> tuple[Config, Transformer, Callable[[], None]]:
    """A recipe of this width, its model, and a whole update of it."""
    model = ModelConfig(
        encoder_layers=3, decoder_layers=3, heads=8, width=width, ff_width=4 * width
    )
    sizes = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    training = {"batch_tokens": SENTENCES * LENGTH, "precision": "float32"}
    config = Config(data=sizes, model=model, training=training)
    transformer = Transformer(model, VOCABULARY, VOCABULARY).train()
    optimiser = torch.optim.Adam(transformer.parameters(), fused=True)
    ids = torch.randint(1, VOCABULARY, (SENTENCES, LENGTH))
    total = SENTENCES * LENGTH
    batch = Batch(ids, ids, ids, np.arange(SENTENCES), total, total)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        batch_losses(transformer, batch, 0.1).smoothed.backward()
        optimiser.step()

    return config, transformer, step


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Of the processor, for one call."""
    began = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began) / times


def main() -> None:
    """Measure in turns; print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    keep_freed_memory()
    steps = {width: step_of(width) for width in WIDTHS}
    matrix = torch.randn(MATRIX, MATRIX)
    peaks: list[float] = []
    measured: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for number in range(rounds + 1):
        peak = 2 * MATRIX**3 / seconds(lambda: matrix @ matrix, 10)
        taken = {width: seconds(step) for width, (_, _, step) in steps.items()}
        if number:  # the first round warms up
            peaks.append(peak)
            for width, value in taken.items():
                measured[width].append(value)
    print(f"{machine()}\nPeak {statistics.median(peaks) / 1e9:.0f} GFLOPS (one thread).\n")
    flops = {width: estimate(config).flops_per_update for width, (config, _, _) in steps.items()}
    shares = {
        width: statistics.median(
            flops[width] / taken / peak for taken, peak in zip(measured[width], peaks, strict=True)
        )
        for width in WIDTHS
    }
    middle = shares[WIDTHS[len(WIDTHS) // 2]]
    print("| width | GFLOPs per update | s measured | s predicted | memory measured | predicted |")
    print("|---|---|---|---|---|---|")
    for width, (_, model, _) in steps.items():
        taken = statistics.median(measured[width])
        predicted = flops[width] / (statistics.median(peaks) * middle)
        kept, said = memory_of(model, steps[width][2])
        print(
            f"| {width} | {flops[width] / 1e9:.1f} | {taken:.3f} ({shares[width]:.0%} of the peak)"
            f" | {predicted:.3f} | {kept / 1e6:.0f} MB | {said / 1e6:.0f} MB |"
        )


def memory_of(model: Transformer, step: Callable[[], None]) -> tuple[int, int]:
    """Bytes of an update: what is alive, with weights and Adam's means, and the formula's."""
    for parameter in model.parameters():
        parameter.grad = None
    with LiveMemory() as memory:
        step()
    parameters = count_parameters(model)
    said = training_bytes(model, SENTENCES * LENGTH, "float32", together=False)
    return memory.peak + 12 * parameters, said


if __name__ == "__main__":
    main()
