"""Rules on single maps and random small networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headcount.errors import UserError
from headcount.ranking.alphabeta import AlphaBeta
from headcount.ranking.options import CHOICES, LrpOptions
from headcount.ranking.ratio import Ratio, Telescoped
from headcount.ranking.rule import LinearMap, Window
from headcount.ranking.rules import make_rule
from ranking.neurons import Network

SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rules(bias: str = "absorb", epsilon: float = 1e-3) -> list:
    """Every rule in the form whose messages are relevance."""
    options = [LrpOptions(rule, bias=bias, epsilon=epsilon) for rule in CHOICES["rule"]]
    return [(o, Ratio(o) if o.rule == "ratio" else make_rule(o)) for o in options]


@settings(max_examples=25)
@given(SHAPE, st.integers(0, 10**6), st.sampled_from(CHOICES["bias"]), st.booleans())
def test_a_linear_map(shape, seed, bias, rectified):
    batch, starts, width, out = shape
    x = random(batch, 2, width, seed=seed)
    x = x.relu() if rectified else x
    map_ = LinearMap(random(out, width, seed=seed + 1), random(out, seed=seed + 2))
    relevance = random(batch, 2, starts, out, seed=seed + 3)
    y = nn.functional.linear(x, map_.weight, map_.bias)
    at = Window(batch, 0, 2)
    for options, rule in rules(bias):
        found, taken_found = rule.linear(x, y, map_)(relevance.clone(), at)
        taken = 0.0
        for b, position, s in torch.cartesian_prod(*map(torch.arange, (batch, 2, starts))):
            network = Network(options)
            inputs = [network.leaf(v) for v in x[b, position].tolist()]
            outputs = network.linear(inputs, map_.weight.tolist(), map_.bias.tolist())
            top = network.sum([(n, 0.0) for n in outputs])
            expected = torch.zeros(width, dtype=torch.float64)
            for j, output in enumerate(outputs):
                network.propagate(output)
                share = torch.tensor([n.relevance for n in inputs], dtype=torch.float64)
                expected += share * relevance[b, position, s, j]
                taken += network.taken_by_bias * float(relevance[b, position, s, j])
            assert top.value == 0.0
            torch.testing.assert_close(found[b, position, s], expected, atol=1e-9, rtol=1e-6)
        if bias == "share":
            assert taken_found is None
        else:
            assert float(taken_found) == pytest.approx(taken, abs=1e-9)


@settings(max_examples=40)
@given(st.integers(2, 6), st.integers(0, 10**6), st.sampled_from(CHOICES["bias"]))
def test_a_layer_norm_with_its_scale_held_fixed(width, seed, bias):
    norm = nn.LayerNorm(width).double()
    with torch.no_grad():
        norm.weight.copy_(random(width, seed=seed))  # negative gains too
        norm.bias.copy_(random(width, seed=seed + 1))
        x = random(1, 1, width, seed=seed + 2)
        relevance = random(1, 1, 1, width, seed=seed + 3)
        for options, rule in rules(bias):
            found, _ = rule.norm(x, norm(x), norm)(relevance.clone(), Window(1, 0, 1))
            network = Network(options)
            inputs = [network.leaf(v) for v in x[0, 0].tolist()]
            outputs = network.norm(inputs, norm.weight.tolist(), norm.bias.tolist(), norm.eps)
            expected = torch.zeros(width, dtype=torch.float64)
            for j, output in enumerate(outputs):
                network.propagate(output)
                shares = torch.tensor([n.relevance for n in inputs], dtype=torch.float64)
                expected += shares * relevance[0, 0, 0, j]
            torch.testing.assert_close(found[0, 0, 0], expected, atol=1e-9, rtol=1e-6)


def test_ratio_is_gradient_times_input_on_a_linear_network_without_biases():
    x = random(2, 3, 7, seed=0).requires_grad_()
    maps = [LinearMap(random(5, 7, seed=1), torch.zeros(5).double())]
    maps += [LinearMap(random(4, 5, seed=2), torch.zeros(4).double())]
    maps += [LinearMap(random(1, 4, seed=3), torch.zeros(1).double())]
    layers = [x]
    for map_ in maps:
        layers.append(layers[-1] @ map_.weight.T)
    (gradient,) = torch.autograd.grad(layers[-1].sum(), x)
    for rule in (Ratio(LrpOptions(epsilon=0.0)), Telescoped(LrpOptions())):
        telescoped = isinstance(rule, Telescoped)
        # Relevance starts as the output itself: the message of `Telescoped` is then 1.
        message = torch.ones_like(layers[-1]) if telescoped else layers[-1]
        message = message[:, :, None].detach().clone()
        for map_, below, above in zip(maps[::-1], layers[-2::-1], layers[::-1], strict=False):
            flow = rule.linear(below.detach(), above.detach(), map_)
            message, _ = flow(message, Window(2, 0, 3))
        relevance = rule.relevance(message, x.detach()[:, :, None])
        torch.testing.assert_close(relevance[:, :, 0], (gradient * x).detach())


def test_one_sign_only_gets_all():
    rule = AlphaBeta(LrpOptions("alphabeta", epsilon=0.0), 0.5, 0.5)
    cases = {(1.0, 3.0): (0.25, 0.75), (-1.0, -3.0): (0.25, 0.75), (2.0, -5.0): (0.5, 0.5)}
    for amounts, expected in cases.items():
        found = rule.fractions(torch.tensor(amounts), 0)
        assert found.tolist() == pytest.approx(expected)
    zplus = AlphaBeta(LrpOptions("zplus", epsilon=0.0), 1.0, 0.0)
    assert zplus.fractions(torch.tensor([2.0, -5.0]), 0).tolist() == [1.0, 0.0]
    assert zplus.fractions(torch.tensor([-2.0, -6.0]), 0).tolist() == [0.25, 0.75]
    assert zplus.fractions(torch.tensor([0.0, 0.0]), 0).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(*[st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0])] * 2), min_size=1))
def test_a_residual_sum_shares_as_its_two_contributions(pairs):
    x, f = (torch.tensor(side)[None, None] for side in zip(*pairs, strict=True))
    for epsilon in (0.0, 0.1):
        for _, rule in rules(epsilon=epsilon):
            ones = torch.ones(1, 1, 1, len(pairs))
            found = torch.stack(rule.add(x, f)(ones, Window(1, 0, 1)))
            expected = rule.fractions(torch.stack([x, f]), 0)
            torch.testing.assert_close(found[:, :, :, 0], expected)


def test_a_bias_that_shares_may_be_many_times_as_large_as_the_rest():
    x, at = random(1, 1, 4, seed=0) * 1e-6, Window(1, 0, 1)
    map_ = LinearMap(random(9, 4, seed=1).abs(), random(9, seed=2) * 1e3)
    message = random(1, 1, 1, 9, seed=3)
    for _, rule in rules("share", epsilon=0.0):
        for sign in (1, -1):  # neurons with contributions of one sign only
            inputs = sign * x.abs()
            y = nn.functional.linear(inputs, map_.weight, map_.bias)
            found, _ = rule.linear(inputs, y, map_)(message.clone(), at)
            expected = message[0, 0, 0] @ rule.fractions(map_.weight * inputs[0, 0], 1)
            torch.testing.assert_close(found[0, 0, 0], expected)


def test_nothing_to_divide_by_passes_nothing_on():
    rule = Ratio(LrpOptions(epsilon=0.0))
    assert rule.fractions(torch.tensor([1.0, -1.0]), 0).tolist() == [0.0, 0.0]


def test_unknown_choices_are_errors_with_a_hint():
    with pytest.raises(UserError, match=r"no rule 'zpluss'.*Did you mean 'zplus'"):
        LrpOptions(rule="zpluss")
    with pytest.raises(UserError, match=r"no layer-norm 'none'.*linear, identity"):
        LrpOptions(layer_norm="none")
    with pytest.raises(UserError, match="epsilon"):
        LrpOptions(epsilon=-1.0)
