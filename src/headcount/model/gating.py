"""Scalar gates on heads: `MultiHead = Concat_i(g_i * head_i) W^O` (Sec. 6.1).

Gates are put on and taken off from outside; no copy of the model is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcount.heads import Head

if TYPE_CHECKING:
    from headcount.model.transformer import Transformer

Gates = Mapping[tuple[str, int], Tensor]


@contextmanager
def gated(model: Transformer, gates: Gates) -> Iterator[None]:
    """Multiply head outputs by gates inside the context.

    `gates[site, layer]` is `[heads]`, one value for each head that the layer has, in its order,
    or `[batch, heads]` for other values in each sentence. Layers without an entry stay ungated.
    """
    attentions = model.attentions()
    before = {place: attentions[place].gate for place in gates}
    try:
        for place, gate in gates.items():
            expected = len(attentions[place].heads)
            if gate.shape[-1] != expected:
                raise ValueError(f"{place} has {expected} heads, its gate {gate.shape[-1]}")
            attentions[place].gate = gate
        yield
    finally:
        for place, earlier in before.items():
            attentions[place].gate = earlier


def mask_gates(model: Transformer, closed: Iterable[Head]) -> dict[tuple[str, int], Tensor]:
    """Gates that are 0 for the closed heads and 1 for the others of the layers they are in."""
    attentions = model.attentions()
    gates: dict[tuple[str, int], Tensor] = {}
    for head in closed:
        attention = attentions[head.site, head.layer]
        place = (head.site, head.layer)
        if place not in gates:
            gates[place] = torch.ones(len(attention.heads), device=attention.out_bias.device)
        gates[place][attention.heads.index(head.index)] = 0.0
    return gates


def masked(model: Transformer, closed: Iterable[Head]) -> AbstractContextManager[None]:
    """Switch heads off inside the context; gates that are on already stay on the other heads."""
    attentions = model.attentions()
    gates = mask_gates(model, closed)
    for place, gate in gates.items():
        before = attentions[place].gate
        if before is not None:
            gates[place] = gate.to(before) * before
    return gated(model, gates)
