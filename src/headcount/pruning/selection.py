"""The interface of all pruning methods: what they are asked for, and which heads they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headcount.heads import Head, HeadLayout

if TYPE_CHECKING:
    from headcount.bench.costs import Costs
    from headcount.pruning.settings import PruneSettings


@dataclass(frozen=True)
class Request:
    """What a method is asked for.

    settings  the resolved settings of the pruning
    heads     all heads that the model has at the sites to prune; at other sites than those of
              attention its blocks of units or whole blocks
    updates   in which heads are chosen
    groups    indices into `heads`, and `budgets`: how many of each group stay; with `keep` only
    scores    one number per head, larger means that it matters more; for methods that rank heads
    layout    what the model has at all sites
    costs     what its parts cost in time; with `speedup` only
    weights   how many weights each of its heads and blocks of units has
    prices    what each open head costs as a multiple of the penalty; without them 1 each
    """

    settings: PruneSettings
    heads: Sequence[Head]
    device: torch.device
    updates: int
    groups: Sequence[Sequence[int]] = ()
    budgets: Sequence[int] = ()
    scores: Mapping[Head, float] | None = None
    prices: Sequence[float] | None = None
    layout: HeadLayout | None = None
    costs: Costs | None = None
    weights: Mapping[Head, int] | None = None


class Selection(ABC):
    """A choice among heads that is made while the model trains.

    Tensors of values are `[heads]`, in the order of `heads`, which are all heads that the model
    has at the sites to prune.
    """

    relaxed = False
    """Whether `typical` gates are not yet binary, so that fixing the choice may cost quality."""

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
        """Whether the choice is unlikely to change any more."""
        return False

    def undecided(self) -> list[Head]:
        """Heads whose gates are neither clearly open nor clearly closed."""
        return []

    def doubts(self, updates: int, rate: float) -> str | None:
        """What to expect if `updates` updates at this learning rate are too few, and why."""
        return None

    def metrics(self) -> dict[str, float | list[float]]:
        """More to log with each training line."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep."""
        return {f"parameter.{i}": p.detach().cpu() for i, p in enumerate(self.parameters())}

    def go_on_after(self, update: int) -> None:  # noqa: B027
        """Restore what follows from the last update of the choosing phase, counted from 1."""

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
    layers = [(layer, len(list(group))) for layer, group in groupby(heads, key=_layer)]
    parts = values.split([size for _, size in layers])
    return {layer: part for (layer, _), part in zip(layers, parts, strict=True)}


def _layer(head: Head) -> tuple[str, int]:
    return head.site, head.layer
