"""The learning rate over the course of training (App. B.3)."""

from __future__ import annotations


def inverse_square_root(update: int, *, scale: float, width: int, warmup: int) -> float:
    """`scale * width^-0.5 * min(update^-0.5, update * warmup^-1.5)`, updates counted from 1."""
    return float(scale * width**-0.5 * min(update**-0.5, update * warmup**-1.5))


def cooldown(update: int, *, updates: int, length: int) -> float:
    """A factor that falls linearly from 1 to 0 over the last `length` of all `updates`.

    Most of the benefit of a falling rate comes from its last part, where the noise of small batches
    dies down. The paper, which trains for weeks, has none.
    """
    return min(1.0, (updates + 1 - update) / (length + 1)) if length else 1.0
