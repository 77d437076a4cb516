"""The learning rate over the course of training (App. B.3)."""

from __future__ import annotations


def inverse_square_root(update: int, *, scale: float, width: int, warmup: int) -> float:
    """`scale * width^-0.5 * min(update^-0.5, update * warmup^-1.5)`, updates counted from 1."""
    return float(scale * width**-0.5 * min(update**-0.5, update * warmup**-1.5))
