"""What a decoder keeps of the past while it writes a translation step by step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.model.attention import KeysValues

_FIRST_CAPACITY = 32


class DecoderCache:
    """Keys and values of each decoder layer, for the source and for the steps so far.

    A sentence may have several hypotheses (a beam). They share one copy of the source's keys and
    values, `source[layer]` `[sentences, heads, source, head]`: to the attention the hypotheses of a
    sentence are just several queries. The past of the targets, `[capacity, rows, values]` with
    `rows = sentences * beam`, holds all layers side by side and time first. So a step writes one
    contiguous slice and reordering hypotheses is one copy, whatever the number of layers and of
    heads in each.
    """

    def __init__(
        self,
        source: list[KeysValues | None],
        mask: Tensor | None,
        sentences: int,
        widths: Sequence[int],
        like: Tensor,
    ) -> None:
        """For layers that keep `widths` values a position; `like` gives data type and device."""
        self.source = source
        self.mask = mask
        self.beam = 1
        self.steps = 0
        self._bounds = [sum(widths[:i]) for i in range(len(widths) + 1)]
        self._past = like.new_empty(_FIRST_CAPACITY, sentences, self._bounds[-1])

    def past(self, layer: int) -> Tensor:
        """Keys, then values, of a layer: `[capacity, rows, 2 * heads * head]`, time first."""
        return self._past[:, :, self._bounds[layer] : self._bounds[layer + 1]]

    def make_room(self) -> None:
        """See to it that there is a place for one more step."""
        if self.steps == len(self._past):
            self._past = torch.cat([self._past, torch.empty_like(self._past)])

    def reorder(self, rows: Tensor, beam: int) -> None:
        """Let row `rows[i]` become row i, where the rows of a sentence stay with it.

        `rows` is `[sentences * beam]`; a row may appear several times or not at all.
        """
        moved = self._past.new_empty(len(self._past), len(rows), self._past.shape[2])
        torch.index_select(self._past[: self.steps], 1, rows, out=moved[: self.steps])
        self._past = moved
        self.beam = beam

    def keep_sentences(self, sentences: Tensor) -> None:
        """Forget the source of all sentences but these; `reorder` drops their rows."""
        for layer, pair in enumerate(self.source):
            if pair is not None:
                self.source[layer] = (pair[0][sentences], pair[1][sentences])
        if self.mask is not None:
            self.mask = self.mask[sentences]
