"""How fast LRP of all heads is, against one step at a time and against plain backward passes.

    python benchmarks/lrp.py [--run RUN --src F --ref F] [--sentences 256] [--rounds 3]

Without a run: an untrained model of `small-cpu`'s shape (6 + 6 layers of 8 heads, 128 wide, 8000
tokens per side) on sentence pairs of the built-in corpus. The decoder reads the references, so that
all contenders see the same prefixes; decoding is not part of it.

In every round these take turns in one process on the same sentences:

    lrp            a batch of sentences, all generation steps together (record + propagate)
    stepwise       the same rule, one sentence and one step at a time, a forward pass a step, as the
                   authors' later code does (on `--slow` sentences, scaled to a step)
    stepwise once  the same with one forward pass a sentence
    backward       a plain backward pass a step, batched over the same sentences, from the top-1
                   logit to the outputs of all heads: no gradients of weights
    training       the same to all weights, which is what a backward pass is in training

Twice: with one thread in CPU seconds, which a busy machine changes less than the clock; and with a
thread a core, as `headcount rank` runs, in seconds of the clock (`all_cores`: it wants an idle
machine). `roofline` has the arithmetic of a step and how near it is to the machine's matrix peak.
Cost against sentence length (`growth`) has the exponent of the fitted power law. Results:
benchmarks/results/lrp.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from measuring import machine
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from headcount.config import ModelConfig
from headcount.data.batches import evaluation_batches, padded
from headcount.data.builtin import generate
from headcount.data.tokenizer import Tokenizer
from headcount.files import read_lines, write_json
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.ranking.lrp.propagate import Propagation, top_tokens
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measuring import BATCH_TOKENS
from headcount.run import load_run

HERE = Path(__file__).resolve().parent
CPU = torch.device("cpu")

Clock = Callable[[], float]

RULES = {
    f"{rule}, {norm} layer norm": LrpOptions(rule, norm)
    for rule in ("ratio", "alphabeta", "zplus")
    for norm in ("linear", "identity")
}


@dataclass(frozen=True)
class Batch:
    """Padded sentences in the order of falling steps."""

    source: Tensor
    prefix: Tensor
    steps: list[int]


def main() -> None:
    options = _options()
    torch.set_num_threads(1)
    model, sources, prefixes = _material(options)
    batches = _batches(sources, prefixes)
    slow = _batches(sources[: options.slow], prefixes[: options.slow], alone=True)
    results = {
        "machine": machine(),
        "run": str(options.run or "untrained"),
        "sentences": len(sources),
        "steps": sum(map(len, prefixes)),
        "source_tokens": sum(map(len, sources)),
        **_compare(model, batches, slow, options.rounds, time.process_time),
        "roofline": _roofline(model, batches, slow),
        "growth": _growth(model, options.rounds),
    }
    torch.set_num_threads(os.cpu_count() or 1)
    everything = _compare(model, batches, slow, options.rounds, time.perf_counter)
    results["all_cores"] = {"threads": torch.get_num_threads(), **everything}
    write_json(HERE / "results" / "lrp.json", results)
    print(json.dumps(results, indent=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--src", type=Path)
    parser.add_argument("--ref", type=Path)
    parser.add_argument("--sentences", type=int, default=256)
    parser.add_argument("--slow", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def _material(options: argparse.Namespace) -> tuple[Transformer, list[list[int]], list[list[int]]]:
    """A model, sources with EOS and prefixes with START."""
    if options.run is None:
        pairs = [
            (sentence.text, target) for sentence, target in generate(options.sentences, seed=1)
        ]
        texts = [list(column) for column in zip(*pairs, strict=True)]
        # Few sentences give a small vocabulary; the model has the size of a real one.
        tokenizers = [Tokenizer.train(column, 2000) for column in texts]
        torch.manual_seed(1)
        config = ModelConfig(encoder_layers=6, decoder_layers=6, width=128, ff_width=512)
        model = Transformer(config, 8000, 8000).eval()
    else:
        run = load_run(options.run)
        texts = [list(islice(read_lines(p), options.sentences)) for p in (options.src, options.ref)]
        tokenizers, model = [run.source_tokenizer, run.target_tokenizer], run.model
    source, target = (t.encode_batch(c) for t, c in zip(tokenizers, texts, strict=True))
    sources = [[*tokens, tokenizers[0].eos] for tokens in source]
    return model, sources, [[tokenizers[1].start, *tokens] for tokens in target]


def _batches(
    sources: list[list[int]], prefixes: list[list[int]], alone: bool = False
) -> list[Batch]:
    """The ranking's own batches, or every sentence alone."""
    groups = evaluation_batches([len(s) - 1 for s in sources], 1 if alone else BATCH_TOKENS)
    batches = []
    for group in groups:
        rows = sorted(group.tolist(), key=lambda i: -len(prefixes[i]))
        batches.append(
            Batch(
                padded([sources[i] for i in rows], 0, CPU),
                padded([prefixes[i] for i in rows], 0, CPU),
                [len(prefixes[i]) for i in rows],
            )
        )
    return batches


def _lrp(propagation: Propagation, batches: list[Batch]) -> None:
    for batch in batches:
        propagation.propagate(propagation.record(batch.source, batch.prefix), batch.steps)


def _stepwise(propagation: Propagation, batches: list[Batch], forward_each: bool) -> None:
    for batch in batches:
        for step in range(batch.steps[0]):
            if forward_each:
                recording = propagation.record(batch.source, batch.prefix[:, : step + 1])
            elif step == 0:
                recording = propagation.record(batch.source, batch.prefix)
            propagation.propagate(recording, [step + 1], first=step)


def _backward(model: Transformer, batches: list[Batch], weights: bool) -> None:
    for batch in batches:
        with record(model, {"outputs"}) as recording:
            memory, mask = model.encode(batch.source)
            states = model.decode(batch.prefix, memory, mask)
        wanted = list(model.parameters()) if weights else list(recording.values())
        with torch.no_grad():
            tops = top_tokens(model, states)
        logits = (states * model.output_weight[tops]).sum(-1)  # [batch, steps]
        for step in range(max(batch.steps)):
            torch.autograd.grad(logits[:, step].sum(), wanted, retain_graph=True, allow_unused=True)


def _compare(
    model: Transformer, batches: list[Batch], slow: list[Batch], rounds: int, clock: Clock
) -> dict[str, Any]:
    """Milliseconds per step of every contender by a clock, and ratios within each round."""
    work: dict[str, tuple[Callable[[], object], int]] = {}
    steps, slow_steps = (sum(sum(b.steps) for b in group) for group in (batches, slow))
    for name, rule in RULES.items():
        propagation = Propagation(model, rule)
        work[f"lrp: {name}"] = (lambda p=propagation: _lrp(p, batches)), steps
        work[f"stepwise: {name}"] = (lambda p=propagation: _stepwise(p, slow, True)), slow_steps
        once = (lambda p=propagation: _stepwise(p, slow, False)), slow_steps
        work[f"stepwise once: {name}"] = once
    work["backward"] = (lambda: _backward(model, batches, False)), steps
    work["training"] = (lambda: _backward(model, batches, True)), steps
    times = _interleaved(work, rounds, clock)
    sentences = sum(len(b.steps) for b in batches)
    ratios = {
        name: {
            "sentences_per_second": round(
                1000 * sentences / steps / statistics.median(times[f"lrp: {name}"]), 1
            ),
            "faster_than_stepwise": _ratio(times[f"stepwise: {name}"], times[f"lrp: {name}"]),
            "faster_than_stepwise_once": _ratio(
                times[f"stepwise once: {name}"], times[f"lrp: {name}"]
            ),
            "of_backward": _ratio(times[f"lrp: {name}"], times["backward"]),
            "of_training_backward": _ratio(times[f"lrp: {name}"], times["training"]),
        }
        for name in RULES
    }
    return {
        "ms_per_step": {name: _spread(results) for name, results in times.items()},
        "rules": ratios,
    }


def _roofline(model: Transformer, batches: list[Batch], slow: list[Batch]) -> dict[str, Any]:
    """Operations of a step of the default rule, against the matrix peak of one thread."""
    propagation = Propagation(model, LrpOptions())
    big = torch.randn(1024, 1024)
    flops = {}
    for name, run, group in (
        ("lrp", lambda: _lrp(propagation, batches), batches),
        ("stepwise", lambda: _stepwise(propagation, slow, True), slow),
        ("peak", lambda: big @ big, [Batch(big, big, [1])]),
    ):
        with FlopCounterMode(display=False) as counter:
            run()
        flops[name] = counter.get_total_flops() / sum(sum(batch.steps) for batch in group)
    steps = sum(sum(batch.steps) for batch in batches)
    work = {"lrp": (lambda: _lrp(propagation, batches), steps), "peak": (lambda: big @ big, 1)}
    times = _interleaved(work, 10, time.process_time)
    speeds = {name: flops[name] / min(times[name]) / 1e6 for name in times}  # GFLOPS
    return {
        "mflop_per_step": {name: round(flops[name] / 1e6, 1) for name in ("lrp", "stepwise")},
        "gflops": {name: round(speed, 1) for name, speed in speeds.items()},
        "of_peak": round(speeds["lrp"] / speeds["peak"], 3),
    }


def _interleaved(
    work: dict[str, tuple[Callable[[], object], int]], rounds: int, clock: Clock
) -> dict[str, list[float]]:
    """Milliseconds per step; the first round only warms up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, (run, steps) in work.items():
            begin = clock()
            run()
            if number:
                times[name].append(1000 * (clock() - begin) / steps)
    return times


def _growth(model: Transformer, rounds: int) -> dict[str, Any]:
    """Cost of one sentence against its length, source and target alike."""
    rng = torch.Generator().manual_seed(1)
    lengths = (8, 16, 32, 64)
    results: dict[str, Any] = {}
    for name in ("ratio, linear layer norm", "alphabeta, identity layer norm"):
        propagation = Propagation(model, RULES[name])
        work = {}
        for length in lengths:
            tokens = torch.randint(4, 1000, (8, length), generator=rng)
            batch = Batch(tokens, tokens, [length] * 8)
            work[str(length)] = (lambda b=batch, p=propagation: _lrp(p, [b])), 8
        medians = {
            k: statistics.median(v)
            for k, v in _interleaved(work, rounds, time.process_time).items()
        }
        points = [(math.log(float(k)), math.log(v)) for k, v in medians.items()]
        slope, _ = statistics.linear_regression(*zip(*points, strict=True))
        results[name] = {
            "ms_per_sentence": {k: round(v, 2) for k, v in medians.items()},
            "exponent": round(slope, 2),
        }
    return results


def _ratio(above: list[float], below: list[float]) -> dict[str, float]:
    return _spread([a / b for a, b in zip(above, below, strict=True)])


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


if __name__ == "__main__":
    main()
