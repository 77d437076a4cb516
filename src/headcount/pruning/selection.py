"""Which heads stay: the interface that learned gates, exact numbers and scores share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from headcount.heads import Head


class Selection(ABC):
    """A choice among heads that is made while the model trains.

    Tensors of values are `[heads]`, in the order of `heads`, which are all heads that the model
    has at the sites to prune.
    """

    def __init__(self, heads: Sequence[Head], device: torch.device) -> None:
        self.heads = list(heads)
        self.device = device

    def parameters(self) -> list[nn.Parameter]:
        """What is learned besides the model's weights."""
        return []

    @abstractmethod
    def begin(self, update: int) -> None:
        """Draw what is random in this update (from 1); called with the same seed everywhere."""

    @abstractmethod
    def gates(self) -> Tensor:
        """The gates of the update that was begun, a differentiable function of the parameters."""

    @abstractmethod
    def is_open(self) -> Tensor:
        """The choice as it stands: `[heads]`, boolean."""

    def typical(self) -> Tensor:
        """The gates without noise and not yet binary."""
        return self.is_open().float()

    def penalty(self) -> Tensor | None:
        """What is added to the mean loss of the update that was begun."""
        return None

    def settled(self) -> bool:
        """Whether the choice will not change any more, as far as one can tell."""
        return False

    def undecided(self) -> list[Head]:
        """Heads for which the choice is a close one."""
        return []

    def metrics(self) -> dict[str, float | list[float]]:
        """More to log with each training line."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        return {f"parameter.{i}": p.detach().cpu() for i, p in enumerate(self.parameters())}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(state[f"parameter.{i}"])

    def kept(self) -> list[Head]:
        """The heads that are open."""
        return [head for head, is_open in zip(self.heads, self.is_open(), strict=True) if is_open]

    def closed(self) -> list[Head]:
        """The heads that are not."""
        kept = set(self.kept())
        return [head for head in self.heads if head not in kept]


def by_layer(heads: Sequence[Head], values: Tensor) -> dict[tuple[str, int], Tensor]:
    """Values `[heads]` in the form that `model.gating.gated` takes."""
    places = [(place, len(list(group))) for place, group in groupby(heads, key=_place)]
    parts = values.split([size for _, size in places])
    return {place: part for (place, _), part in zip(places, parts, strict=True)}


def _place(head: Head) -> tuple[str, int]:
    return head.site, head.layer
