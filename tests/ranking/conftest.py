"""Models small enough to be followed neuron by neuron, and padded batches for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

VOCABULARY = 11


@pytest.fixture(scope="session")
def tiny(make_model) -> Callable:
    """`tiny(norm="post", ...)`: biases everywhere, heads wider than their share of the width."""
    return partial(
        make_model, vocabulary=(VOCABULARY, VOCABULARY), heads=2, width=4, head_width=3,
        ff_width=5, tie="none", output_bias=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def make_batch(make_tokens) -> Callable:
    """`make_batch(sources, steps)`: sources with EOS, prefixes with START, padded.

    Both are numbers of tokens, EOS and START counted.
    """

    def make(sources: list[int], steps: list[int], seed: int = 1) -> tuple[torch.Tensor, ...]:
        source = make_tokens([n - 1 for n in sources], VOCABULARY, seed)
        prefix = make_tokens(steps, VOCABULARY, seed + 1)[:, : max(steps)]
        for row, count in zip(prefix, steps, strict=True):
            row[0], row[count:] = 2, 0
        return source, prefix

    return make
