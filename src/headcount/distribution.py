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

T = TypeVar("T")

# How long a process waits for the others. NCCL's own ten minutes are less than the leader may need
# to fetch and encode millions of sentences.
PATIENCE = timedelta(hours=4)


@dataclass(frozen=True)
class Workers:
    """This process among its peers."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

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
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        if self.world > 1:
            dist.barrier()

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over processes as one message."""
        if self.world == 1:
            return
        chosen = [p for p in parameters if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in chosen]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        dist.all_reduce(flat)
        for parameter, part in zip(chosen, flat.split([g.numel() for g in grads]), strict=True):
            parameter.grad = part.view_as(parameter)


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
        yield Workers(dist.get_rank(), dist.get_world_size(), device)
    finally:
        if not joined:
            dist.destroy_process_group()
