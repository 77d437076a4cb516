"""The paper's learning rate (App. B.3)."""

from __future__ import annotations

import pytest

from headcount.training.objective import cooldown, inverse_square_root


def test_peaks_at_the_end_of_warmup_at_the_papers_value() -> None:
    rates = [inverse_square_root(u, scale=4, width=512, warmup=16000) for u in range(1, 40000, 7)]
    peak = inverse_square_root(16000, scale=4, width=512, warmup=16000)
    assert peak == pytest.approx(4 * 512**-0.5 * 16000**-0.5)
    assert max(rates) <= peak


def test_linear_then_inverse_square_root() -> None:
    def rate(update: int) -> float:
        return inverse_square_root(update, scale=1, width=64, warmup=100)

    assert rate(50) == pytest.approx(rate(100) / 2)
    assert rate(400) == pytest.approx(rate(100) / 2)


def test_cooldown_touches_only_the_end_and_never_reaches_zero() -> None:
    factors = [cooldown(update, updates=100, length=9) for update in range(1, 101)]
    assert factors[:91] == [1.0] * 91
    assert factors[91:] == pytest.approx([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert cooldown(100, updates=100, length=0) == 1.0
