"""Score-based pruning: heads that a measure ranks low are masked in steps (Sec. 4 gives scores)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.pruning.selection import Selection
from headcount.pruning.top_k import hard_top_k


class ScoredHeads(Selection):
    """Keeps `budgets[i]` heads of each group `groups[i]`, those with the best scores.

    Over `updates` updates the others are masked in `steps` equal steps, the lowest score first,
    so that the model can adapt in between.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        groups: Sequence[Sequence[int]],
        budgets: Sequence[int],
        *,
        scores: Mapping[Head, float],
        updates: int,
        steps: int,
    ) -> None:
        super().__init__(heads, device)
        self.updates, self.steps = updates, steps
        self.scores = torch.tensor([scores[head] for head in self.heads], dtype=torch.float64)
        self._open = torch.zeros(len(self.heads), dtype=torch.bool)
        for group, budget in zip(groups, budgets, strict=True):
            self._open[list(group)] = hard_top_k(self.scores[list(group)], budget)
        order = torch.sort(self.scores, stable=True).indices.tolist()
        self.closing = [i for i in order if not self._open[i]]
        """Places of the heads to close, the first one first."""
        self._step = 0

    def begin(self, update: int) -> None:
        """See which step it is."""
        done = self.steps * (update - 1) // max(1, self.updates)
        self._step = min(self.steps, done + 1)

    def gates(self) -> Tensor:
        """Zeros for what is masked by now."""
        number = -(-len(self.closing) * self._step // self.steps)
        gates = torch.ones(len(self.heads), device=self.device)
        gates[self.closing[:number]] = 0.0
        return gates

    def is_open(self) -> Tensor:
        """The heads that stay in the end."""
        return self._open.to(self.device)

    def metrics(self) -> dict[str, float | list[float]]:
        """How many are open now."""
        return {"open": int(self.gates().sum())}
