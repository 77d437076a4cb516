"""What is measured while training goes on: `metrics.jsonl`, dev loss, specialised heads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headcount.data.batches import collate, evaluation_batches
from headcount.data.cleaning import spread_indices
from headcount.data.shards import Shards
from headcount.data.tokenizer import Tokenizer
from headcount.distribution import Workers
from headcount.errors import UserError
from headcount.files import disk_errors, parsing, write_text
from headcount.model.transformer import Transformer
from headcount.role.specialisation import SENTENCES, Watched, specialisation
from headcount.training.masking import Ask
from headcount.training.objective import batch_losses

Metrics = dict[str, Any]
"""One line of `metrics.jsonl`."""

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


@dataclass
class Window:
    """Sums since the last logged line, on the device: reading them would stall a GPU.

    `began` is the training time at that line: evaluating and saving do not count as slow training.
    """

    smoothed: Tensor
    nll: Tensor
    began: float
    target_tokens: int = 0
    source_tokens: int = 0
    real: np.ndarray = field(default_factory=lambda: np.zeros(2))  # source and target positions
    padded: np.ndarray = field(default_factory=lambda: np.zeros(2))  # the same, padding included

    def to_json(self, workers: Workers) -> dict[str, Any]:
        """What a checkpoint keeps: the sums over all workers."""
        sums = workers.sum(torch.stack([self.smoothed, self.nll])).tolist()
        counts = {"target_tokens": self.target_tokens, "source_tokens": self.source_tokens}
        positions = {"real": self.real.tolist(), "padded": self.padded.tolist()}
        return {"sums": sums, "began": self.began, **counts, **positions}

    def put_back(self, stored: Mapping[str, Any], workers: Workers) -> None:
        """Go on from what a checkpoint kept; the leader takes the sums of all."""
        if workers.leader:
            self.smoothed += float(stored["sums"][0])
            self.nll += float(stored["sums"][1])
        self.began = float(stored["began"])
        self.target_tokens = int(stored["target_tokens"])
        self.source_tokens = int(stored["source_tokens"])
        self.real += np.array(stored["real"], dtype=float)
        self.padded += np.array(stored["padded"], dtype=float)


DEVICE_TOKENS = 4000
LOGITS = 200_000_000
"""Logits in one batch at most: with a vocabulary of hundreds of thousands, fewer tokens."""


@dataclass(frozen=True)
class HeldOut:
    """Held-out pairs as tokens, some references as text for BLEU, and perhaps parses."""

    shards: Shards
    sentences: int
    sources: Sequence[str] = ()
    references: Sequence[str] = ()
    parsed: Watched | None = None

    def watched(self) -> Watched:
        """The sentences that heads are watched on: parsed ones where there are any."""
        if self.parsed is not None:
            return self.parsed
        numbers = spread_indices(len(self.shards), min(SENTENCES, self.sentences))
        return Watched.tokens([self.shards.pair(place)[0].tolist() for place in numbers])

    def batches(self, limit: int, tokens: int = DEVICE_TOKENS) -> list[np.ndarray]:
        """The numbers of at most `limit` pairs, spread evenly over all, by length.

        Each batch has at most `tokens` source tokens.
        """
        numbers = np.array(spread_indices(len(self.shards), limit))
        lengths = self.shards.source_lengths[numbers]
        return [numbers[batch] for batch in evaluation_batches(lengths, tokens)]


def dev_loss(
    model: Transformer,
    held_out: HeldOut,
    ids: Tokenizer,
    workers: Workers,
    ask: Ask | None = None,
) -> float:
    """Cross-entropy in nats per target token, EOS counted, without smoothing or dropout.

    `ask` as in `Objective`; its random choices are the same on every call.
    """
    tokens = max(1, LOGITS // len(model.output_weight))
    batches = held_out.batches(held_out.sentences, min(DEVICE_TOKENS, tokens))
    total = torch.zeros(2, dtype=torch.float64)
    with torch.inference_mode():
        for indices in workers.share(batches):
            batch = collate(held_out.shards, indices, pad=ids.pad, start=ids.start, eos=ids.eos)
            batch = batch.to(workers.device)
            if ask is not None:
                with torch.random.fork_rng():
                    torch.manual_seed(int(indices[0]))
                    batch = ask(batch)
            losses = batch_losses(model, batch, 0.0)
            total += torch.tensor([losses.nll.item(), batch.target_tokens], dtype=torch.float64)
    total = workers.sum(total.to(workers.device)).cpu()
    return float(total[0] / total[1])


def watch_heads(
    model: Transformer, held_out: HeldOut, ids: Tokenizer, device: torch.device
) -> dict[str, float | int]:
    """How far encoder heads have specialised, for the training log."""
    return specialisation(model, held_out.watched(), ids, device)


def tokens_seen(run: Path) -> int:
    """Source tokens that a run has been trained on, by its log; 0 where it has none."""
    path = run / FILE
    lines = read_metrics(path) if path.is_file() else []
    return max((int(line.get("source_tokens", 0)) for line in lines), default=0)
