"""The training objective with gates: `L(theta, phi) = L_xent + lambda L_C(phi)` (Sec. 6.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from headcount.data.batches import Batch
from headcount.model.gating import Gates, gated
from headcount.model.transformer import Transformer
from headcount.pruning.selection import Selection, by_layer
from headcount.training.objective import Losses, Objective


class GatedObjective(Objective):
    """Two phases: heads are chosen, then the model is trained with the choice held fixed.

    The choice is made after `choosing` updates or as soon as the selection has settled. Then every
    gate is 0 or 1, and `finetune` more updates follow. `decide` is called in between.
    """

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        selection: Selection,
        choosing: int,
        finetune: int,
        decide: Callable[[int], None] = lambda update: None,
    ) -> None:
        super().__init__(model, label_smoothing)
        self.selection = selection
        self.choosing, self.finetune = choosing, finetune
        self.decide = decide
        self.update = 0
        self.decided_at: int | None = None
        """The last update of the first phase, once it is over."""

    def begin_update(self, update: int) -> None:
        """Draw the gates of this update, the same on all workers."""
        if self.decided_at is None and self._ready():
            self.decided_at = self.update
            self.decide(self.update)
        self.update = update
        if self.decided_at is None:
            self.selection.begin(update)

    def losses(self, batch: Batch) -> Losses:
        """Summed losses under the gates of this update.

        The gates are computed anew from the noise of the update, for each micro-batch has its own
        backward pass.
        """
        with gated(self.model, self._gates()):
            return super().losses(batch)

    def penalty(self) -> Tensor | None:
        """The price of open heads, while they are chosen."""
        return self.selection.penalty() if self.decided_at is None else None

    def finished(self) -> str | None:
        """Stop when both phases are over."""
        ended = self.decided_at
        if ended is None and self._ready():
            ended = self.update
        if ended is not None and self.update - ended >= self.finetune:
            return "heads have settled"
        return None

    def share_left(self, update: int) -> float:
        """For the learning rate: 1 while heads are chosen, then falling linearly towards 0."""
        if self.decided_at is None or not self.finetune:
            return 1.0
        done = (update - 1 - self.decided_at) / self.finetune
        return min(1.0, max(0.0, 1 - done))

    def binary_gates(self) -> Gates:
        """The choice as it stands, as gates."""
        return by_layer(self.selection.heads, self.selection.is_open().float())

    def typical_gates(self) -> Gates:
        """The gates without noise, not yet binary."""
        return by_layer(self.selection.heads, self.selection.typical())

    def metrics(self) -> dict[str, float | list[float]]:
        """What the selection says of itself."""
        return self.selection.metrics()

    def state(self) -> dict[str, Tensor]:
        """The selection's state and the phase."""
        decided = -1 if self.decided_at is None else self.decided_at
        phase = {"phase": torch.tensor([self.update, decided])}
        return phase | {f"selection.{k}": v for k, v in self.selection.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.update, decided = state["phase"].tolist()
        self.decided_at = None if decided < 0 else decided
        self.selection.load_state(
            {
                name.removeprefix("selection."): tensor
                for name, tensor in state.items()
                if name.startswith("selection.")
            }
        )

    def _ready(self) -> bool:
        return self.update >= self.choosing or self.selection.settled()

    def _gates(self) -> Gates:
        if self.decided_at is not None:
            return self.binary_gates()
        return by_layer(self.selection.heads, self.selection.gates())
