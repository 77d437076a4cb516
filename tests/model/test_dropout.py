"""Our dropout drops the share it is asked to, evenly, and obeys torch's seed."""

from __future__ import annotations

import pytest
import torch

from headcount.model.primitives import dropout


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_share_and_scale(rate: float) -> None:
    torch.manual_seed(0)
    count = 400_003  # not a multiple of the four elements that share one draw
    result = dropout(torch.ones(count), rate)
    dropped = int((result == 0).sum())
    deviation = (count * rate * (1 - rate)) ** 0.5
    assert abs(dropped - count * rate) < 5 * deviation
    kept = result[result != 0]
    assert torch.allclose(kept, torch.full_like(kept, 1 / (1 - rate)), rtol=1e-3)
    # The mean is kept: exactly in expectation, as the scale is that of the resolved rate.
    assert abs(float(result.mean()) - 1) < 5 * deviation / count / (1 - rate)


def test_elements_are_dropped_independently() -> None:
    torch.manual_seed(0)
    kept = dropout(torch.ones(2000, 64), 0.3).ne(0).double()
    assert (kept.mean(0) - 0.7).abs().max() < 0.06  # every column alike
    for shift in (1, 2, 3, 4, 64):
        flat = kept.flatten() - 0.7
        correlation = float((flat[shift:] * flat[:-shift]).mean()) / (0.3 * 0.7)
        assert abs(correlation) < 0.02, shift


def test_torch_seed_rules_it() -> None:
    x = torch.randn(50, 7)
    torch.manual_seed(3)
    first, second = dropout(x, 0.4), dropout(x, 0.4)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(dropout(x, 0.4), first)
    assert torch.equal(dropout(x, 0.4), second)


def test_gradient_flows_through_what_is_kept() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 5, dtype=torch.float64, requires_grad=True)
    result = dropout(x, 0.25)
    result.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad == 0, result == 0)
    assert result.dtype == torch.float64
