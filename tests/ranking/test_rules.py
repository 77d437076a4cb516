"""Rules on single maps and random small networks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from headcount.errors import UserError
from headcount.ranking.lrp import fast
from headcount.ranking.lrp.fast import FAST, FastAlphaBeta, FastRatio, Telescoped, maps_of
from headcount.ranking.lrp.maps import LinearMap, Maps, Window
from headcount.ranking.lrp.rules import CHOICES, RULES, AlphaBeta, LrpOptions, Ratio, Rule, ZPlus
from ranking.neurons import Network

SHAPE = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 5))


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def forms(bias: str = "absorb", epsilon: float = 1e-3) -> list[tuple[LrpOptions, Maps]]:
    """Every rule by its fractions, and by each fast form whose messages are relevance."""
    pairs = []
    for name, rule in RULES.items():
        options = LrpOptions(name, bias=bias, epsilon=epsilon)
        kinds = [Maps, *(f for f in FAST[rule.fractions] if f is not Telescoped)]
        pairs += [(options, kind(rule(epsilon), options)) for kind in kinds]
    assert len(pairs) == 2 * len(RULES)
    return pairs


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
    for options, maps in forms(bias):
        found, taken_found = maps.linear(x, y, map_)(relevance.clone(), at)
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
        for options, maps in forms(bias):
            found, _ = maps.norm(x, norm(x), norm)(relevance.clone(), Window(1, 0, 1))
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
    for kind in (Maps, FastRatio, Telescoped):
        maps_ = kind(Ratio(0.0), LrpOptions())
        telescoped = kind is Telescoped
        # Relevance starts as the output itself: the message of `Telescoped` is then 1.
        message = torch.ones_like(layers[-1]) if telescoped else layers[-1]
        message = message[:, :, None].detach().clone()
        for map_, below, above in zip(maps[::-1], layers[-2::-1], layers[::-1], strict=False):
            flow = maps_.linear(below.detach(), above.detach(), map_)
            message, _ = flow(message, Window(2, 0, 3))
        relevance = maps_.relevance(message, x.detach()[:, :, None])
        torch.testing.assert_close(relevance[:, :, 0], (gradient * x).detach())


def test_one_sign_only_gets_all():
    rule = AlphaBeta(epsilon=0.0)
    cases = {(1.0, 3.0): (0.25, 0.75), (-1.0, -3.0): (0.25, 0.75), (2.0, -5.0): (0.5, 0.5)}
    for amounts, expected in cases.items():
        found = rule.fractions(torch.tensor(amounts), 0)
        assert found.tolist() == pytest.approx(expected)
    zplus = ZPlus(epsilon=0.0)
    assert zplus.fractions(torch.tensor([2.0, -5.0]), 0).tolist() == [1.0, 0.0]
    assert zplus.fractions(torch.tensor([-2.0, -6.0]), 0).tolist() == [0.25, 0.75]
    assert zplus.fractions(torch.tensor([0.0, 0.0]), 0).tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(*[st.sampled_from([-2.0, -1.0, 0.0, 1.0, 3.0])] * 2), min_size=1))
def test_a_residual_sum_shares_as_its_two_contributions(pairs):
    x, f = (torch.tensor(side)[None, None] for side in zip(*pairs, strict=True))
    for epsilon in (0.0, 0.1):
        for _, maps in forms(epsilon=epsilon):
            ones = torch.ones(1, 1, 1, len(pairs))
            found = torch.stack(maps.add(x, f)(ones, Window(1, 0, 1)))
            expected = maps.rule.fractions(torch.stack([x, f]), 0)
            torch.testing.assert_close(found[:, :, :, 0], expected)


def test_a_bias_that_shares_may_be_many_times_as_large_as_the_rest():
    x, at = random(1, 1, 4, seed=0) * 1e-6, Window(1, 0, 1)
    map_ = LinearMap(random(9, 4, seed=1).abs(), random(9, seed=2) * 1e3)
    message = random(1, 1, 1, 9, seed=3)
    for _, maps in forms("share", epsilon=0.0):
        for sign in (1, -1):  # neurons with contributions of one sign only
            inputs = sign * x.abs()
            y = nn.functional.linear(inputs, map_.weight, map_.bias)
            found, _ = maps.linear(inputs, y, map_)(message.clone(), at)
            expected = message[0, 0, 0] @ maps.rule.fractions(map_.weight * inputs[0, 0], 1)
            torch.testing.assert_close(found[0, 0, 0], expected)


def test_nothing_to_divide_by_passes_nothing_on():
    rule = Ratio(epsilon=0.0)
    assert rule.fractions(torch.tensor([1.0, -1.0]), 0).tolist() == [0.0, 0.0]


def test_the_value_path_of_fast_forms_is_that_of_the_fractions():
    weights = random(2, 3, 5, 5, seed=0).softmax(-1).tril()  # causal
    values, message = random(2, 3, 5, 4, seed=1), random(1, 3, 2, 6, 4, seed=2)
    at = Window(1, 1, 3)  # one sentence, two queries, six starts, four of the keys
    for name, rule in RULES.items():
        *_, fast_form = FAST[rule.fractions]
        found, expected = (
            kind(rule(1e-3), LrpOptions(name)).values(weights, values, weights @ values)(
                message.clone(), at, 4
            )
            for kind in (fast_form, Maps)
        )
        torch.testing.assert_close(found, expected)


def test_contributions_are_written_out_in_slices(monkeypatch):
    x, map_ = random(2, 3, 4, seed=0), LinearMap(random(5, 4, seed=1), random(5, seed=2))
    message, at = random(2, 3, 2, 5, seed=3), Window(2, 0, 3)
    maps = Maps(Ratio(), LrpOptions())
    y = nn.functional.linear(x, map_.weight, map_.bias)
    whole = maps.linear(x, y, map_)(message.clone(), at)
    monkeypatch.setattr("headcount.ranking.lrp.maps.CONTRIBUTIONS", 60)
    torch.testing.assert_close(maps.linear(x, y, map_)(message.clone(), at), whole)


class Squares(Rule):
    """A rule without a fast form."""

    name, help = "squares", "by squares"

    def fractions(self, contributions, dim):
        squares = contributions.square()
        return squares / (squares.sum(dim, keepdim=True) + self.epsilon)


class SquaredRatio(Ratio):
    """A rule that inherits all but `fractions` from one with fast forms."""

    fractions = Squares.fractions


def test_a_fast_form_runs_for_its_own_rule_only():
    assert type(maps_of(Ratio(), LrpOptions())) is Telescoped
    assert type(maps_of(Ratio(), LrpOptions(layer_norm="identity"))) is FastRatio
    assert type(maps_of(Ratio(), LrpOptions(bias="share"))) is FastRatio
    assert type(maps_of(Ratio(), LrpOptions(attention="softmax"))) is FastRatio
    assert type(maps_of(ZPlus(), LrpOptions("zplus"))) is FastAlphaBeta
    for rule in (Squares(), SquaredRatio()):
        assert type(maps_of(rule, LrpOptions())) is Maps


@pytest.mark.parametrize("rule", [Ratio, AlphaBeta])
def test_a_rule_that_was_edited_runs_as_edited(rule, monkeypatch):
    """As if the lines of its `fractions` had been changed, its fast form still beside it."""
    monkeypatch.setattr(fast, "FAST", {Squares.fractions: FAST[rule.fractions]})
    monkeypatch.setattr(rule, "fractions", Squares.fractions)
    with pytest.warns(UserWarning, match=f"does not compute the rule '{rule.name}' as it is now"):
        maps = maps_of(rule(), LrpOptions(rule.name))
    assert type(maps) is Maps


def test_unknown_choices_are_errors_with_a_hint():
    with pytest.raises(UserError, match=r"no rule 'zpluss'.*Did you mean 'zplus'"):
        LrpOptions(rule="zpluss")
    with pytest.raises(UserError, match=r"no layer-norm 'none'.*linear, identity"):
        LrpOptions(layer_norm="none")
    with pytest.raises(UserError, match="epsilon"):
        LrpOptions(epsilon=-1.0)
