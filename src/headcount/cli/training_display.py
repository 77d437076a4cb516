"""What people see while a model trains: progress, speed, time left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headcount.cli.console import StatusLine, clock
from headcount.config import TrainingConfig


class TrainingDisplay:
    """Turns logged lines into a live table; on a dumb terminal into plain lines."""

    def __init__(self, config: TrainingConfig) -> None:
        self.config = config
        self.train: dict[str, Any] = {}
        self.dev: list[dict[str, Any]] = []

    def take(self, line: dict[str, Any]) -> None:
        """One logged line."""
        if line["kind"] == "train":
            self.train = line
        else:
            self.dev.append(line)

    def share_done(self) -> float:
        """How much of the training is done: of its updates or of its time."""
        done = float(self.train["update"]) / self.config.updates
        if self.config.minutes is not None:
            done = max(done, float(self.train["seconds"]) / 60 / self.config.minutes)
        return min(done, 1.0)

    def render(self) -> RenderableType:
        """The current state."""
        if not self.train:
            return Text("Training begins ...")
        done, seconds = self.share_done(), float(self.train["seconds"])
        left = seconds * (1 - done) / done if done else 0.0
        parts: list[RenderableType] = [
            StatusLine([*self._texts(clock(left)), f"{clock(seconds)} done"], done)
        ]
        if self.dev:
            parts.append(self._dev_table())
        return Group(*parts)

    def _texts(self, left: str) -> list[str]:
        """What stands before the bar, the most important first."""
        train = self.train
        texts = [f"loss {train['loss']:.3f}", f"{train['source_tokens_per_second']:.0f} tokens/s"]
        bleu = [line["dev_bleu"] for line in self.dev if line.get("dev_bleu") is not None]
        losses = [line["dev_loss"] for line in self.dev if line.get("dev_loss") is not None]
        if bleu:
            texts.append(f"best BLEU {max(bleu):.2f}")
        elif losses:
            texts.append(f"best dev loss {min(losses):.3f}")
        texts.append(f"{left} left")
        if "open" in train:
            texts.append(f"{train['open']} heads open")
        return [*texts, f"update {train['update']}", f"epoch {train['epoch'] + 1}"]

    def _dev_table(self) -> Table:
        table = Table(title="Held-out text", title_justify="left")
        names = {
            "update": "update",
            "dev_loss": "loss",
            "dev_bleu": "BLEU (greedy)",
            "confidence_max": "most confident head",
            "positional_max": "most positional head",
            "positional_heads": "positional heads",
        }
        lines = self.dev[-8:]
        names = {
            name: title for name, title in names.items() if any(name in line for line in lines)
        }
        for title in names.values():
            table.add_column(title, justify="right")
        for line in lines:
            table.add_row(*(_number(line.get(name)) for name in names))
        return table

    def plain(self, line: dict[str, Any]) -> str:
        """A logged line for a file or a dumb terminal."""
        shown = {k: v for k, v in line.items() if k != "kind" and not isinstance(v, list)}
        fields = "  ".join(f"{name} {_number(value)}" for name, value in shown.items())
        return f"{time.strftime('%H:%M:%S')} {line['kind']:5}  {fields}"


@contextmanager
def live_display(config: TrainingConfig, console: Console, quiet: bool) -> Iterator[Any]:
    """A function to call with each logged line; draws live on a terminal, else prints lines."""
    display = TrainingDisplay(config)
    if quiet:
        yield lambda line: None
        return
    if not console.is_terminal:

        def say(line: dict[str, Any]) -> None:
            console.print(display.plain(line), soft_wrap=True)

        yield say
        return
    # Begun with the first line: stages of preparation may show bars of their own before it.
    live = Live(console=console, refresh_per_second=4)

    def show(line: dict[str, Any]) -> None:
        display.take(line)
        live.start()
        live.update(display.render())

    try:
        yield show
    finally:
        live.stop()


def _number(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
