"""Decoding step by step through the modules themselves, so that edits of the decoder are seen.

`stepping` is fast because it calls no modules; an edit (`recording.edit_places`) is made inside
them. So where the decoder is edited, every step reads the whole prefix again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from headcount.model.transformer import Transformer

DECODER = ("dec", "cross", "dec_ff", "dec_in", "dec_out")


class WholePrefix:
    """The tokens that each hypothesis has so far; a search uses it as it uses a `DecoderCache`."""

    def __init__(self, memory: Tensor, mask: Tensor | None, beam: int) -> None:
        """`memory` `[batch, source, width]` and its key mask `[batch, 1, 1, source]`."""
        self.beam = beam
        self.memory, self.mask = memory, mask
        self.prefixes = torch.empty(
            len(memory), beam, 0, dtype=torch.long, device=memory.device
        )  # [batch, beam, steps]

    @property
    def steps(self) -> int:
        """How many tokens have been read."""
        return self.prefixes.shape[2]

    def follow(self, parents: Tensor) -> None:
        """Let hypothesis `parents[s, i]` of sentence s go on as its hypothesis i."""
        index = parents[:, :, None].expand_as(self.prefixes)
        self.prefixes = self.prefixes.gather(1, index)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        self.prefixes, self.memory = self.prefixes[sentences], self.memory[sentences]
        if self.mask is not None:
            self.mask = self.mask[sentences]

    def step(self, model: Transformer, tokens: Tensor) -> Tensor:
        """One step: last tokens `[batch, beam]` to states `[batch, beam, width]`."""
        self.prefixes = torch.cat([self.prefixes, tokens[:, :, None]], dim=2)
        memory = self.memory.repeat_interleave(self.beam, 0)
        mask = None if self.mask is None else self.mask.repeat_interleave(self.beam, 0)
        states = model.decode(self.prefixes.flatten(0, 1), memory, mask)
        return states[:, -1].view(*tokens.shape, -1)
