"""TensorBoard beside `metrics.jsonl`, where the extra is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headcount.errors import UserError


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
