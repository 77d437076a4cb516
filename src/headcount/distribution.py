"""Several processes as one, under torchrun: NCCL on GPUs, Gloo on CPUs, any number of machines.

Every process works on its own share of the same global batch; gradients are summed once per update.
Analyses share out sentences and sum their counts in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headcount.errors import UserError

T = TypeVar("T")

# How long a process waits for the others where they meet. NCCL's own ten minutes are less than the
# leader may need to fetch and encode millions of sentences.
PATIENCE = timedelta(hours=4)

# How long it waits for their numbers, in seconds: longer than an evaluation, which the leader makes
# alone. A host whose cable is out never says that it is gone.
ANSWER, ANSWER_SECONDS = "HEADCOUNT_PATIENCE", 1800.0


@dataclass(frozen=True)
class Workers:
    """This process among its peers."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None

    @property
    def leader(self) -> bool:
        """Whether this process is the one that writes files and prints."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's share of the items: every `world`-th one."""
        return items[self.rank :: self.world]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of every process's tensor, in place."""
        if self.world > 1:
            with _lost_processes():
                dist.all_reduce(tensor, group=self.group)
        return tensor

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.world > 1:
            with _lost_processes():
                dist.barrier()

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over processes as one message."""
        if self.world == 1:
            return
        chosen = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self.sum(flat)
        for parameter, part in zip(chosen, flat.split([g.numel() for g in grads]), strict=True):
            parameter.grad = part.view_as(parameter)


@contextmanager
def _lost_processes() -> Iterator[None]:
    """Say in one line that another process has gone: torchrun then restarts all of them."""
    try:
        yield
    except RuntimeError as error:  # also torch's DistBackendError
        reason = str(error).splitlines()[0][:160]
        raise UserError(
            f"Another process of this job does not answer ({reason}).",
            "Run the same command with --resume; torchrun --max-restarts does so by itself.",
        ) from error


def _answer_time() -> timedelta:
    """How long to wait for the others' numbers."""
    text = os.environ.get(ANSWER, "")
    try:
        seconds = float(text) if text else ANSWER_SECONDS
        if not 1 <= seconds <= 10**6:
            raise ValueError(text)
    except ValueError as error:
        raise UserError(
            f"{ANSWER}={text} is not a number of seconds.", "Set it to 1 to a million, or unset it."
        ) from error
    return timedelta(seconds=seconds)


def default_device() -> torch.device:
    """A GPU where there is one: the one torchrun assigns to this process."""
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


@contextmanager
def connect(workers: Workers | None = None) -> Iterator[Workers]:
    """Join the processes that torchrun started, or work alone, or use `workers` as they are."""
    if workers is not None:
        yield workers
        return
    device = default_device()
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Workers(device=device)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    joined = dist.is_initialized()
    if not joined:
        # Gloo also beside NCCL: counts of analyses are in main memory.
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    try:
        group = dist.new_group(timeout=_answer_time())
        yield Workers(dist.get_rank(), dist.get_world_size(), device, group)
    finally:
        if not joined:
            dist.destroy_process_group()
