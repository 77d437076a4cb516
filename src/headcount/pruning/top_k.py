"""The method `exact`: learned scores, a relaxed top-k (after Li, Cotterell & Sachan 2021).

Their differentiable subset pruning gives every head a learned score, adds Gumbel noise, relaxes
"the K best" to gates that sum to K, and lowers a temperature until the gates are binary. Kept here
are the scores, the noise (with it, hard top-k would be sampling without replacement), the falling
temperature and the hard constraint. Two things differ:

- The relaxation. Theirs adds up K softmaxes one after the other, in which a head that leads by far
  can be chosen twice and get a gate near 2. Here the gates are `sigmoid((score - t) / temperature)`
  with the one threshold `t` for which they sum to K: never above 1, exact for K = 0 and K = all.
- The number of open heads falls from all of them to K while the temperature falls. Theirs has K
  from the start, which suits training from scratch; a converged model would be damaged badly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from headcount.heads import Head
from headcount.pruning.selection import Quotas, Request, Selection, block_values

_BISECTIONS = 60

CLOSED = 1e-30
"""The smallest gate of a block that has a logarithm here."""


def soft_top_k(scores: Tensor, k: float, temperature: float) -> Tensor:
    """Gates in [0, 1] that sum to `k`, near 1 for the largest of the scores `[heads]`.

    The maximum of `sum(gate * score) + temperature * entropy` under that constraint. `k` need not
    be a whole number. The gradient is that of the constrained solution: one gate rises only as
    others fall.
    """
    if k >= len(scores):
        return scores * 0 + 1
    if k <= 0:
        return scores * 0
    threshold = _threshold(scores.detach().double() / temperature, k)
    scaled = scores / temperature - threshold.to(scores.dtype)
    gates = torch.sigmoid(scaled)
    slopes = (gates * (1 - gates)).detach()
    # One Newton step on the threshold; its value hardly moves, but its derivative is that of the
    # true threshold by the implicit function theorem.
    shift = (gates.sum() - k) / slopes.sum().clamp(min=1e-12)
    return torch.sigmoid(scaled - shift.clamp(-1, 1))


def _threshold(scaled: Tensor, k: float) -> Tensor:
    """The `t` for which `sum(sigmoid(scaled - t)) = k`, by bisection."""
    room = 40.0 + len(scaled)
    low, high = scaled.min() - room, scaled.max() + room
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        too_many = torch.sigmoid(scaled - middle).sum() > k
        low, high = torch.where(too_many, middle, low), torch.where(too_many, high, middle)
    return (low + high) / 2


def gumbel(uniform: Tensor) -> Tensor:
    """Standard Gumbel noise from noise that is uniform on (0, 1)."""
    tiny = torch.finfo(uniform.dtype).tiny
    exponential = -torch.log(uniform.clamp(min=tiny))
    return -torch.log(exponential.clamp(min=tiny))


class TopKGates(Selection):
    """Gates for exactly `budgets[i]` heads of each of the groups of heads `groups[i]` (`Quotas`).

    One group holds all heads, or each layer is a group of its own (`--even`). Over `updates`
    updates the number of open heads falls to the budget (cubically: fast while many are idle, as
    in Zhu & Gupta 2017) and the temperature falls geometrically from `hot` to `cold`.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        groups: Sequence[Sequence[int]],
        budgets: Sequence[int],
        *,
        updates: int,
        hot: float = 1.0,
        cold: float = 0.1,
    ) -> None:
        super().__init__(heads, device)
        self.quotas = Quotas(self.heads, self.blocks, groups, budgets)
        self.groups = [torch.tensor(group, device=device) for group in groups]
        self.budgets = list(budgets)
        self.updates, self.hot, self.cold = updates, hot, cold
        self.scores = nn.Parameter(torch.zeros(len(self.heads), device=device))
        self._noise = torch.zeros(len(self.heads), device=device)
        self._done = 0.0

    @classmethod
    def of(cls, request: Request) -> TopKGates:
        """The gates of a pruning to an exact number."""
        return cls(
            request.heads,
            request.device,
            request.groups,
            request.budgets,
            updates=request.updates,
        )

    def parameters(self) -> list[nn.Parameter]:
        """The scores."""
        return [self.scores]

    def begin(self, update: int) -> None:
        """Draw the noise and advance the schedule."""
        self._done = min(1.0, (update - 1) / max(1, self.updates))
        self._noise = gumbel(torch.rand(len(self.heads))).to(self.device)

    def gates(self) -> Tensor:
        """This update's gates: relaxed, with noise, as many as the schedule says.

        With budgets for blocks and for what they hold, `exp(score)` of a head is multiplied by the
        gate of its block: in a block that closes it would take up the budget and do nothing.
        """
        scores = self.scores + self._noise
        if not self.quotas.nested:
            return self._soft(scores)
        scores = self.quotas.ranked(scores)
        open_blocks = block_values(self._soft(scores).detach(), self.blocks)
        return self._soft(scores + torch.log(open_blocks.clamp(min=CLOSED)))

    def _soft(self, scores: Tensor) -> Tensor:
        """The relaxed choice in each group, as many as the schedule says: `[heads]`."""
        return self._spread(
            [
                soft_top_k(scores[group], number, self.temperature)
                for group, number in zip(self.groups, self.open_numbers(), strict=True)
            ]
        )

    @property
    def temperature(self) -> float:
        """Between `hot` and `cold`, as far as the schedule is."""
        return float(self.hot * (self.cold / self.hot) ** self._done)

    def open_numbers(self) -> list[float]:
        """How many heads of each group are open now; not whole numbers on the way."""
        left = (1 - self._done) ** 3
        return [
            budget + (len(group) - budget) * left
            for group, budget in zip(self.groups, self.budgets, strict=True)
        ]

    def is_open(self) -> Tensor:
        """The heads with the best scores: always exactly the budget."""
        return self.quotas.best(self.scores)

    def metrics(self) -> dict[str, float | list[float]]:
        """How many are open, the temperature, and each head's score."""
        return {
            "expected_open": sum(self.open_numbers()),
            "open": sum(self.budgets),
            "temperature": self.temperature,
            "scores": [round(score, 4) for score in self.scores.tolist()],
        }

    def state(self) -> dict[str, Tensor]:
        """The scores, and how far the schedule is."""
        return super().state() | {"done": torch.tensor(self._done, dtype=torch.float64)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        super().load_state(state)
        self._done = float(state["done"])

    def _spread(self, parts: Sequence[Tensor]) -> Tensor:
        """Values of each group, put where its heads are: `[heads]`."""
        order = torch.cat(self.groups)
        values = torch.cat(list(parts))
        return torch.zeros_like(values).index_put((order,), values)
