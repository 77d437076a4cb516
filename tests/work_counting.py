"""Counting work instead of seconds: calls of methods, and tensor operations with their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear", "matmul"}
"""The last two only where no gradients are recorded: elsewhere they arrive as one of the others."""


class Operations(TorchDispatchMode):
    """Every operation inside the context, backward passes included: its name and its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, list[tuple[int, ...]]]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        tensors = outputs if isinstance(outputs, (tuple, list)) else [outputs]
        shapes = [tuple(tensor.shape) for tensor in tensors if isinstance(tensor, Tensor)]
        # With gradients `log_softmax` arrives as `_log_softmax`.
        self.done.append((func.overloadpacket.__name__.lstrip("_"), shapes))
        return outputs

    def count(self, *names: str) -> int:
        """How many operations had one of these names."""
        return sum(name in names for name, _ in self.done)

    def products(self) -> int:
        """How many products of matrices there were."""
        return self.count(*PRODUCTS)

    def made(self, wanted: Callable[[tuple[int, ...]], bool]) -> list[str]:
        """The operations that computed a tensor of a wanted shape; views and writes into an
        existing tensor do not count."""
        kept = ("view", "reshape", "expand", "t", "transpose", "detach", "alias", "slice", "select")
        return [
            name
            for name, shapes in self.done
            if name not in kept and not name.endswith("_") and any(map(wanted, shapes))
        ]


@contextmanager
def calls(owner: type, *names: str) -> Iterator[Counter[str]]:
    """How often methods of a class are called inside the context."""
    counted: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            original = getattr(owner, name)

            def wrapper(*args: Any, _name: str = name, _call: Any = original, **kwargs: Any) -> Any:
                counted[_name] += 1
                return _call(*args, **kwargs)

            patch.setattr(owner, name, wrapper)
        yield counted


def vocabulary_rows(size: int) -> Callable[[tuple[int, ...]], bool]:
    """Whether a tensor has a column for each token of the vocabulary."""
    return lambda shape: len(shape) > 1 and shape[-1] == size


def rows(shape: tuple[int, ...]) -> int:
    """Rows of a tensor, whatever its number of dimensions."""
    return int(torch.Size(shape[:-1]).numel())
