"""The training objective with gates: `L(theta, phi) = L_xent + lambda L_C(phi)` (Sec. 6.1)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from headcount.data.batches import Batch
from headcount.model.gating import Gates, gated
from headcount.model.transformer import Transformer, side_of
from headcount.pruning.selection import Selection, by_layer
from headcount.training.distillation import Teacher
from headcount.training.masking import Ask
from headcount.training.objective import Losses, Objective

SETTLED = "heads have settled"


class GatedObjective(Objective):
    """Two phases: heads are chosen, then (from `fix` on) a model without the others is trained.

    The first phase is over after `choosing` updates or as soon as the selection has settled; the
    second after `choosing + finetune`, so that all prunings with these numbers have as many updates
    (but for those without a second phase, which end when gates have settled). The training loop
    stops at the end of each phase, so that the caller can act in between.
    """

    def __init__(
        self,
        model: Transformer,
        label_smoothing: float,
        selection: Selection,
        choosing: int,
        finetune: int,
        teacher: Teacher | None = None,
        ask: Ask | None = None,
    ) -> None:
        super().__init__(model, label_smoothing, teacher, ask)
        self.selection = selection
        self.choosing, self.finetune = choosing, finetune
        self.update = 0
        self.fixed_at: int | None = None
        """The last update of the first phase, once it is over."""

    @property
    def fixed(self) -> bool:
        """Whether heads have been chosen, and the model has no others."""
        return self.fixed_at is not None

    def fix(self, smaller: Transformer) -> None:
        """End the first phase with the choice as it stands; `smaller` has no closed heads."""
        self.model = smaller
        if self.fixed_at is None:
            self.fixed_at = self.update

    def begin_update(self, update: int) -> None:
        """Draw the gates of this update, the same on all workers."""
        self.update = update
        if not self.fixed:
            self.selection.begin(update)

    def losses(self, batch: Batch) -> Losses:
        """Summed losses under the gates of this update.

        The gates are recomputed from the noise of the update, as each micro-batch has its own
        backward pass.
        """
        if self.fixed:
            return super().losses(batch)
        with gated(self.model, by_layer(self.selection.heads, self.selection.gates())):
            return super().losses(batch)

    def penalty(self) -> Tensor | None:
        """The price of open heads, while they are chosen."""
        return None if self.fixed else self.selection.penalty()

    def finished(self) -> str | None:
        """Stop at the end of a phase."""
        if self.fixed_at is None:
            over = self.update >= self.choosing or self.selection.settled()
        else:
            over = self.update >= self.choosing + self.finetune
        return SETTLED if over else None

    def share_left(self, update: int) -> float:
        """For the learning rate: 1 while heads are chosen, then falling linearly towards 0."""
        if self.fixed_at is None or not self.finetune:
            return 1.0
        done = (update - 1 - self.fixed_at) / (self.choosing + self.finetune - self.fixed_at)
        return min(1.0, max(0.0, 1 - done))

    def binary_gates(self) -> Gates:
        """The choice as it stands, as gates; none are needed once closed heads are gone."""
        return (
            {} if self.fixed else by_layer(self.selection.heads, self.selection.is_open().float())
        )

    def typical_gates(self) -> Gates:
        """The gates without noise, not yet binary."""
        return by_layer(self.selection.heads, self.selection.typical())

    def metrics(self) -> dict[str, float | list[float]]:
        """The selection's own metrics."""
        return self.selection.metrics()

    def state(self) -> dict[str, Tensor]:
        """The selection's state and the phase."""
        fixed = -1 if self.fixed_at is None else self.fixed_at
        phase = {"phase": torch.tensor([self.update, fixed])}
        return phase | {f"selection.{k}": v for k, v in self.selection.state().items()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Put back what `state` gave."""
        self.update, fixed = state["phase"].tolist()
        self.fixed_at = None if fixed < 0 else fixed
        if last := self.update if self.fixed_at is None else self.fixed_at:
            self.selection.go_on_after(last)
        self.selection.load_state(
            {
                name.removeprefix("selection."): tensor
                for name, tensor in state.items()
                if name.startswith("selection.")
            }
        )


def train_parts(model: Transformer, parts: Collection[str]) -> list[nn.Parameter]:
    """Freeze all weights but those of the parts (`encoder`, `decoder`); the ones that train.

    The encoder is its layers, position biases and the source embeddings; all else is the decoder,
    cross-attention too. "By not fine-tuning the decoder, we ensure that the functions of the pruned
    encoder heads do not migrate to the decoder" (Sec. 6.2). An embedding table that both sides
    share is part of both and trains only where both do.
    """
    shared = model.source_embedding.table is model.target_embedding.table
    chosen = []
    for name, parameter in model.named_parameters():
        needed = {"encoder" if side_of(name) in ("source", "encoder") else "decoder"}
        if shared and parameter is model.source_embedding.table.weight:
            needed = {"encoder", "decoder"}
        parameter.requires_grad_(needed <= set(parts))
        if parameter.requires_grad:
            chosen.append(parameter)
    return chosen
