"""The Hard Concrete distribution against simulation, numeric integration and differences."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from torch import Tensor

from headcount.pruning.gates import HardConcrete

FAMILIES = [HardConcrete(), HardConcrete(0.66, -0.2, 1.3), HardConcrete(1.5, -0.05, 1.4)]
LOGITS = [-4.0, -1.0, 0.0, 0.5, 2.5]

families = st.sampled_from(FAMILIES)
logits = st.floats(-6, 6)


def slow_sample(family: HardConcrete, logit: float, u: float) -> float:
    """Louizos et al. 2018, eq. 10 and 11, one number at a time."""
    s = 1 / (1 + math.exp(-(math.log(u) - math.log(1 - u) + logit) / family.temperature))
    stretched = s * (family.high - family.low) + family.low
    return min(1.0, max(0.0, stretched))


@given(families, logits, st.floats(0.001, 0.999))
def test_a_sample_is_the_formula(family: HardConcrete, logit: float, u: float) -> None:
    double = torch.float64
    drawn = family.sample(torch.tensor(logit, dtype=double), torch.tensor(u, dtype=double))
    assert float(drawn) == pytest.approx(slow_sample(family, logit, u), abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("logit", LOGITS)
def test_probabilities_are_those_of_samples(family: HardConcrete, logit: float) -> None:
    count = 200_000
    torch.manual_seed(0)
    value = torch.tensor(logit)
    drawn = family.sample(value, torch.rand(count))
    for closed_form, seen in (
        (family.zero_probability(value), drawn == 0),
        (family.one_probability(value), drawn == 1),
        (family.open_probability(value), drawn != 0),
    ):
        p = float(closed_form)
        error = 5 * math.sqrt(p * (1 - p) / count)
        assert float(seen.float().mean()) == pytest.approx(p, abs=error + 1e-5)


@given(families, logits)
def test_all_probability_adds_up(family: HardConcrete, logit: float) -> None:
    value = torch.tensor(logit, dtype=torch.float64)

    def density(x: float) -> float:
        return float(family.density(value, torch.tensor(x, dtype=torch.float64)))

    between, _ = quad(density, 0, 1, limit=200)
    ends = float(family.zero_probability(value) + family.one_probability(value))
    assert between + ends == pytest.approx(1, abs=1e-6)
    assert float(family.open_probability(value)) == pytest.approx(
        between + float(family.one_probability(value)), abs=1e-6
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_density_between_the_ends(family: HardConcrete) -> None:
    """Shares of samples in bins against the integral of the density."""
    torch.manual_seed(1)
    logit, count = torch.tensor(0.4, dtype=torch.float64), 400_000
    drawn = family.sample(logit, torch.rand(count, dtype=torch.float64))
    edges = torch.linspace(0, 1, 6, dtype=torch.float64).tolist()
    for low, high in itertools.pairwise(edges):
        share = float(((drawn > low) & (drawn < high)).double().mean())
        mass, _ = quad(lambda x: float(family.density(logit, torch.tensor(x))), low, high)
        assert share == pytest.approx(mass, abs=5 * math.sqrt(mass / count) + 1e-4)


@given(families, logits, st.floats(0.01, 0.99))
def test_gradient_of_a_sample(family: HardConcrete, logit: float, u: float) -> None:
    """The noise is held fixed: a sample is a differentiable function of its logit."""
    value = torch.tensor(logit, dtype=torch.float64, requires_grad=True)
    noise = torch.tensor(u, dtype=torch.float64)
    drawn = family.sample(value, noise)
    drawn.backward()
    assert value.grad is not None
    step = 1e-6
    around = [slow_sample(family, logit + s, u) for s in (-step, step)]
    if around[0] > 0 and around[1] < 1:
        slope = (around[1] - around[0]) / (2 * step)
        assert float(value.grad) == pytest.approx(slope, rel=1e-4, abs=1e-8)
        assert float(value.grad) > 0
    elif float(drawn.detach()) in (0.0, 1.0):
        assert float(value.grad) == 0


@pytest.mark.parametrize("name", ["open_probability", "one_probability", "zero_probability"])
def test_gradients_of_probabilities(name: str) -> None:
    """The closed forms are differentiable, as the penalty needs them."""
    function = getattr(HardConcrete(), name)
    values = torch.tensor(LOGITS, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x), (values,))


@given(logits.filter(lambda x: abs(x) > 1e-6))
def test_test_time_gate_is_the_likelier_end(logit: float) -> None:
    family, value = HardConcrete(), torch.tensor(logit, dtype=torch.float64)
    likelier = float(family.one_probability(value)) > float(family.zero_probability(value))
    assert bool(family.is_open(value)) == likelier == (logit > 0)


def test_gates_are_really_zero_and_one() -> None:
    torch.manual_seed(0)
    drawn: Tensor = HardConcrete().sample(torch.zeros(1000), torch.rand(1000))
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert (drawn == 0).any()
    assert (drawn == 1).any()
    assert ((drawn > 0) & (drawn < 1)).any()


def test_without_noise() -> None:
    family = HardConcrete()
    typical = family.typical(torch.tensor([-9.0, 0.0, 9.0]))
    assert typical.tolist() == pytest.approx([0, 0.5, 1])


def test_noise_at_its_ends_is_harmless() -> None:
    value = torch.tensor([0.3, 0.3], requires_grad=True)
    drawn = HardConcrete().sample(value, torch.tensor([0.0, 1.0]))
    drawn.sum().backward()
    assert drawn.tolist() == [0, 1]
    assert value.grad is not None
    assert value.grad.tolist() == [0, 0]
