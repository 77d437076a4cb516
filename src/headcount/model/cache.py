"""What a decoder keeps of the past while it writes translations step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.model.attention import KeysValues

_FIRST_CAPACITY = 16


class DecoderCache:
    """Keys and values of each decoder layer, for the source and for the steps so far.

    A sentence may have several hypotheses (a beam). They share one copy of the source's keys and
    values, `source[layer]` `[batch, heads, source, head]`: to the attention the hypotheses of a
    sentence are just several queries. Likewise they share the past of the target,
    `own[layer]` `[2, batch, heads, capacity * beam, head]`: whatever any of them has written stays
    where it is, and a mask tells each hypothesis which of these positions are its own. So keys and
    values never move when hypotheses change places, only the mask does.
    """

    def __init__(
        self,
        source: list[KeysValues | None],
        mask: Tensor | None,
        heads: Sequence[tuple[int, int]],
        like: Tensor,
        beam: int,
    ) -> None:
        """`heads` are the number of heads and their width in each layer's self-attention.

        `like` `[batch, ...]` gives the number of sentences, the data type and the device.
        """
        self.source = source
        self.mask = mask
        self.beam = beam
        self.steps = 0
        batch, places = len(like), _FIRST_CAPACITY * beam
        self.own = [like.new_empty(2, batch, count, places, width) for count, width in heads]
        # [batch, beam, steps, beam]: 0 where a hypothesis may look, else -inf
        self._visible = like.new_empty(batch, beam, 0, beam)
        self._itself = like.new_full((beam, beam), float("-inf")).fill_diagonal_(0.0)

    def begin_step(self) -> Tensor | None:
        """Make room for one more step; what each hypothesis may look at, its own step included.

        Gives `[batch, 1, beam, (steps + 1) * beam]` to be added to attention scores.
        """
        if self.own and self.steps * self.beam == self.own[0].shape[3]:
            self.own = [torch.cat([own, torch.empty_like(own)], dim=3) for own in self.own]
        if self.beam == 1:
            return None
        itself = self._itself[None, :, None].expand(len(self._visible), -1, 1, -1)
        self._visible = torch.cat([self._visible, itself], dim=2)
        return self._visible.flatten(2)[:, None]

    def follow(self, parents: Tensor) -> None:
        """Let hypothesis `parents[s, i]` of sentence s go on as its hypothesis i."""
        if self.beam > 1:
            index = parents[:, :, None, None].expand(-1, -1, *self._visible.shape[2:])
            self._visible = self._visible.gather(1, index)

    def keep_sentences(self, sentences: Tensor) -> None:
        """Forget all sentences but these."""
        for layer, pair in enumerate(self.source):
            if pair is not None:
                self.source[layer] = (pair[0][sentences], pair[1][sentences])
        if self.mask is not None:
            self.mask = self.mask[sentences]
        self._visible = self._visible[sentences]
        self.own = [self._kept(own, sentences) for own in self.own]

    def _kept(self, own: Tensor, sentences: Tensor) -> Tensor:
        """Copy only what has been written."""
        used = self.steps * self.beam
        kept = own.new_empty(2, len(sentences), *own.shape[2:])
        kept[:, :, :, :used] = own[:, sentences, :, :used]
        return kept
