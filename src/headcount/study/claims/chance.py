"""Comparison with chance: values of heads shuffled within their layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DRAWS = 2000


def shuffled_within_layers(layers: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    """Each layer's values `[heads]` in random orders, `[DRAWS, heads]`."""
    rng = torch.Generator().manual_seed(seed)
    return [values[torch.rand(DRAWS, len(values), generator=rng).argsort(1)] for values in layers]
