"""Named places in the model, and a context that records what passes through them.

A place is `(part, layer, kind)`. Parts are the three attention sites (`enc`, `dec`, `cross`), the
feed-forward blocks (`enc_ff`, `dec_ff`), the embeddings (`enc_in`, `dec_in`) and the ends of both
stacks (`enc_out`, `dec_out`, layer 0). Kinds, with their shapes:

    residual   [batch, length, width]           what enters a block
    input      [batch, length, width]           what the block's function sees (normed in pre-norm)
    memory     [batch, source, width]           cross only: the encoder's output
    queries    [batch, heads, length, head]     keys and values likewise
    weights    [batch, heads, length, keys]     attention after the softmax
    outputs    [batch, heads, length, head]     each head, before its gate and before W^O
    hidden_in  [batch, length, ff]              before the activation; `hidden` after it
    output     [batch, length, width]           what the block adds to the residual
    sum        [batch, length, width]           residual + output
    result     [batch, length, width]           what leaves the block (normed in post-norm)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from headcount.model.transformer import Transformer

Place = tuple[str, int, str]


class Recording(dict[Place, Tensor]):
    """What a forward pass left at the places that were asked for."""

    def __init__(self, kinds: Iterable[str], parts: Iterable[str] | None = None) -> None:
        super().__init__()
        self.kinds = frozenset(kinds)
        self.parts = None if parts is None else frozenset(parts)

    def wants(self, part: str, kind: str) -> bool:
        """Whether this place is to be kept."""
        return kind in self.kinds and (self.parts is None or part in self.parts)


class Tape:
    """Shared by all blocks of one model: the recording under way, if there is one."""

    def __init__(self) -> None:
        self.recording: Recording | None = None

    def wants(self, part: str, *kinds: str) -> bool:
        """Whether any of these kinds is recorded here now."""
        recording = self.recording
        return recording is not None and any(recording.wants(part, kind) for kind in kinds)

    def keep(self, part: str, layer: int, **tensors: Tensor) -> None:
        """Record tensors by kind, where somebody wants them."""
        recording = self.recording
        if recording is None:
            return
        for kind, tensor in tensors.items():
            if recording.wants(part, kind):
                recording[part, layer, kind] = tensor


@contextmanager
def record(
    model: Transformer, kinds: Iterable[str], parts: Iterable[str] | None = None
) -> Iterator[Recording]:
    """Record the given kinds (at the given parts only) in every forward pass inside the context.

    A later pass overwrites an earlier one. The model is as before afterwards, also when an
    exception passes through; what was recorded stays with the caller.
    """
    before = model.tape.recording
    recording = Recording(kinds, parts)
    model.tape.recording = recording
    try:
        yield recording
    finally:
        model.tape.recording = before
