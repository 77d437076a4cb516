"""The interface of all pruning methods: what they are asked for, and which heads they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headcount.errors import UserError
from headcount.heads import BLOCKS, Head, HeadLayout, stack_of

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
    groups    indices into `heads`, and `budgets`: how many of each group stay (`Quotas`); with
              `keep` only
    scores    one number per head, larger means that it matters more; for methods that rank heads
    layout    what the model has at all sites
    costs     what its parts cost in time; with `speedup` only
    weights   how many weights each of its heads and blocks of units has
    """

    settings: PruneSettings
    heads: Sequence[Head]
    device: torch.device
    updates: int
    groups: Sequence[Sequence[int]] = ()
    budgets: Sequence[int] = ()
    scores: Mapping[Head, float] | None = None
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
        self.blocks = own_blocks(self.heads)
        """For each head the index of the gate of its block, or its own if that has none."""

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
        """Whether gates are open as things stand: `[heads]`, boolean.

        A head whose gate is open in a block that is closed is not there all the same: see `kept`.
        """

    def typical(self) -> Tensor:
        """The gates without noise and not yet binary."""
        return self.is_open().float()

    def penalty(self) -> Tensor | None:
        """What is added to the mean loss of the update that was begun."""
        return None

    def reprice(self, costs: Costs) -> None:  # noqa: B027
        """Choose by other prices from here on; for methods that go by time."""

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
        """The heads that are there: those that are open in a block that is open."""
        is_open = self.is_open().tolist()
        return [
            head
            for number, (head, block) in enumerate(zip(self.heads, self.blocks, strict=True))
            if is_open[number] and is_open[block]
        ]

    def there(self, gates: Tensor) -> Tensor:
        """How far heads are there: gates, or their probabilities, times those of their blocks."""
        return gates * block_values(gates, self.blocks)

    def closed(self) -> list[Head]:
        """The heads that are not there."""
        kept = set(self.kept())
        return [head for head in self.heads if head not in kept]


class Quotas:
    """Exactly `budgets[i]` heads of each group `groups[i]`, and these in blocks that stay.

    Groups are indices into `heads`, and `own_blocks` has their blocks (the function of that name).
    Of whole blocks those with the best scores stay, as far as the budgets of what they hold leave
    room: if 10 heads are to stay, there must be blocks for 10 (`check_room`). Then heads and units
    are chosen, from the open blocks alone.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        own_blocks: Sequence[int],
        groups: Sequence[Sequence[int]],
        budgets: Sequence[int],
    ) -> None:
        self._own_block = torch.tensor(own_blocks, dtype=torch.long)
        quotas = list(zip(groups, budgets, strict=True))
        self._blocks = [
            (group, number, _held_by(heads, own_blocks, group, quotas))
            for group, number in quotas
            if _whole(heads, group)
        ]
        others = [(g, n) for g, n in quotas if not _whole(heads, g)]
        self._contents = [(torch.tensor(g, dtype=torch.long), n) for g, n in others]
        self.nested = any(held for _, _, held in self._blocks)
        """Whether there are budgets both for blocks and for what is in them."""

    def best(self, scores: Tensor) -> Tensor:
        """True for the heads with the best scores `[heads]` that the budgets allow."""
        chosen = torch.zeros(len(scores), dtype=torch.bool)
        values = scores.detach().cpu()
        for blocks, budget, held in self._blocks:
            chosen[_roomy_blocks(blocks, budget, held, values.tolist())] = True
        for group, budget in self._contents:
            block = self._own_block[group]
            there = group[(block == group) | chosen[block]]
            chosen[there] = hard_top_k(values[there], budget)
        return chosen.to(scores.device)

    def ranked(self, scores: Tensor) -> Tensor:
        """The scores `[heads]`, exchanged among blocks so that those that `best` takes are best."""
        values, chosen = scores.detach().cpu(), self.best(scores).cpu()
        shift = torch.zeros_like(values)
        for blocks, _, held in self._blocks:
            if held:
                falling = torch.tensor(sorted(blocks, key=lambda block: -float(values[block])))
                order = torch.cat([falling[chosen[falling]], falling[~chosen[falling]]])
                shift[order] = values[falling] - values[order]
        return scores + shift.to(scores.device)


@dataclass(frozen=True)
class _Held:
    """A budget for what blocks hold: how many each of them has, and how many are to stay.

    number  of those that are to stay: the ones that need one of the blocks
    """

    site: str
    room: Mapping[int, int]
    number: int

    def blocks_needed(self, chosen: Iterable[int], others: Iterable[int]) -> int:
        """How many of the other blocks must stay at least, besides those that were chosen."""
        number = self.number - sum(self.room.get(block, 0) for block in chosen)
        rooms = sorted((self.room.get(block, 0) for block in others), reverse=True)
        needed = 0
        while number > 0 and needed < len(rooms):
            number -= rooms[needed]
            needed += 1
        return needed if number <= 0 else needed + 1  # one more than there are: no room


def _roomy_blocks(
    blocks: Sequence[int], budget: int, held: Sequence[_Held], scores: Sequence[float]
) -> list[int]:
    """The best blocks that leave room for what they hold: each is taken if the rest still fits."""
    others = sorted(blocks, key=lambda block: -scores[block])
    chosen: list[int] = []
    for block in list(others):
        others.remove(block)
        left = budget - len(chosen) - 1
        if sum(each.blocks_needed([*chosen, block], others) for each in held) <= left:
            chosen.append(block)
    return chosen


def check_room(
    heads: Sequence[Head], groups: Sequence[Sequence[int]], budgets: Sequence[int]
) -> None:
    """Stop where more heads or units are to stay than so many whole blocks can hold."""
    own, quotas = own_blocks(heads), list(zip(groups, budgets, strict=True))
    for blocks, budget in quotas:
        held = _held_by(heads, own, blocks, quotas) if _whole(heads, blocks) else []
        needs = [(each, each.blocks_needed([], blocks)) for each in held if each.number > 0]
        needed = sum(need for _, need in needs)
        if needed <= budget:
            continue
        site, layers = heads[blocks[0]].site, {heads[block].layer for block in blocks}
        where = f"{site} in layer {min(layers)}" if len(layers) == 1 else site
        asked = " and ".join(f"{each.site}={each.number} needs {need}" for each, need in needs)
        most = sum(sorted(needs[0][0].room.values(), reverse=True)[:budget])
        room = f", which have room for {most}" if len(needs) == 1 else ""
        raise UserError(
            f"--keep: {asked} of the whole blocks at {where}, but only {budget} stay{room}.",
            f"Keep at least {needed} there, or less of what they hold.",
        )


def _whole(heads: Sequence[Head], group: Sequence[int]) -> bool:
    """Whether a group is one of whole blocks."""
    return bool(group) and heads[group[0]].site in BLOCKS


def _held_by(
    heads: Sequence[Head],
    own: Sequence[int],
    blocks: Sequence[int],
    quotas: Sequence[tuple[Sequence[int], int]],
) -> list[_Held]:
    """The budgets for what these blocks hold."""
    known, held = set(blocks), []
    for group, number in quotas:
        inside = [own[index] for index in group if own[index] != index and own[index] in known]
        if inside:
            elsewhere = len(group) - len(inside)  # in blocks that all stay
            held.append(_Held(heads[group[0]].site, Counter(inside), number - elsewhere))
    return held


def own_blocks(heads: Sequence[Head]) -> list[int]:
    """For each head or unit the index of its residual block; its own if that is not in the list."""
    indices = {head: index for index, head in enumerate(heads)}
    return [indices.get(block_of(head), index) for index, head in enumerate(heads)]


def block_values(values: Tensor, own_blocks: Sequence[int]) -> Tensor:
    """For each head the value of its block, 1 where that has none; for blocks 1: `[heads]`."""
    own = torch.tensor(own_blocks, dtype=torch.long, device=values.device)
    alone = own == torch.arange(len(own), device=values.device)
    return torch.where(alone, 1.0, values[own])


def block_of(head: Head) -> Head:
    """The residual block that holds a head or a unit."""
    blocks = f"{stack_of(head.site)}_layers"
    if head.site in BLOCKS:
        return head
    return Head(blocks, head.layer, BLOCKS[blocks].index(head.site))


def hard_top_k(scores: Tensor, k: int) -> Tensor:
    """True for exactly the `k` largest of the scores `[heads]`; of equals, the earlier ones."""
    chosen = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    chosen[torch.sort(scores, descending=True, stable=True).indices[:k]] = True
    return chosen


def by_layer(heads: Sequence[Head], values: Tensor) -> dict[tuple[str, int], Tensor]:
    """Values `[heads]` in the form that `model.gating.gated` takes."""
    layers = [(layer, len(list(group))) for layer, group in groupby(heads, key=_layer)]
    parts = values.split([size for _, size in layers])
    return {layer: part for (layer, _), part in zip(layers, parts, strict=True)}


def _layer(head: Head) -> tuple[str, int]:
    return head.site, head.layer
