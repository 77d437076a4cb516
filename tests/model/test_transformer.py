"""What holds for the whole model: padding, causality, tied embeddings, one step at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.errors import UserError
from headcount.heads import Head
from headcount.model.gating import remove_heads
from headcount.model.transformer import Transformer
from model_shapes import SHAPES

PAD, START = 0, 2

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]
shapes = st.sampled_from(sorted(SHAPES))
lengths = st.lists(st.integers(0, 9), min_size=1, max_size=4)


def targets_of(tokens: torch.Tensor) -> torch.Tensor:
    """START in front of the tokens of each sentence."""
    return torch.cat([torch.full((len(tokens), 1), START), tokens], dim=1)


@settings(max_examples=25)
@given(sources=lengths, shape=shapes, seed=st.integers(0, 50), padding=st.integers(1, 5))
@torch.no_grad()
def test_padding_and_company_change_nothing(
    make_model: Maker, make_tokens: Tokens, sources: list[int], shape: str, seed: int, padding: int
) -> None:
    model = make_model(seed, **SHAPES[shape])
    batch = make_tokens(sources, seed=seed)
    target = targets_of(make_tokens([4] * len(sources), seed=seed + 1))
    together = model(torch.nn.functional.pad(batch, (0, padding), value=PAD), target)
    for row, length in enumerate(sources):
        alone = model(batch[row : row + 1, : length + 1], target[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-9, atol=1e-9)


@settings(max_examples=25)
@given(shape=shapes, seed=st.integers(0, 50), changed=st.integers(1, 6))
@torch.no_grad()
def test_later_tokens_do_not_change_earlier_states(
    make_model: Maker, make_tokens: Tokens, shape: str, seed: int, changed: int
) -> None:
    model = make_model(seed, **SHAPES[shape])
    memory, mask = model.encode(make_tokens([3, 5], seed=seed))
    target = targets_of(make_tokens([6, 6], seed=seed))
    other = target.clone()
    other[:, changed:] = (other[:, changed:] + 5) % 19
    before, after = model.decode(target, memory, mask), model.decode(other, memory, mask)
    torch.testing.assert_close(before[:, :changed], after[:, :changed], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(before[:, changed], after[:, changed])


@settings(max_examples=25)
@given(
    sources=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    steps=st.integers(1, 40),
    shape=shapes,
    bare=st.booleans(),
    seed=st.integers(0, 50),
)
@torch.no_grad()
def test_step_by_step_equals_all_at_once(
    make_model: Maker,
    make_tokens: Tokens,
    sources: list[int],
    steps: int,
    shape: str,
    bare: bool,
    seed: int,
) -> None:
    model = make_model(seed, **SHAPES[shape])
    if bare:  # a layer without heads keeps no keys and values
        gone = [Head("dec", 0, i) for i in range(3)] + [Head("cross", 1, i) for i in range(3)]
        model = remove_heads(model, gone)
    memory, mask = model.encode(make_tokens(sources, seed=seed))
    target = targets_of(make_tokens([steps] * len(sources), seed=seed))
    cache = model.start(memory, mask)
    states = [model.step(target[:, i : i + 1], cache)[:, 0] for i in range(steps)]
    expected = model.decode(target[:, :steps], memory, mask)
    torch.testing.assert_close(torch.stack(states, 1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tie", ["none", "target", "inputs", "all"])
def test_tied_embeddings(make_model: Maker, make_tokens: Tokens, tie: str) -> None:
    model = make_model(tie=tie, vocabulary=(19, 19), output_bias=True)
    source, target, output = (
        model.source_embedding.table.weight,
        model.target_embedding.table.weight,
        model.output_weight,
    )
    assert (output is target) == (tie in ("target", "all"))
    assert (source is target) == (tie in ("inputs", "all"))
    names = [name for name, _ in model.named_parameters()]
    tables = {"none": 3, "target": 2, "inputs": 2, "all": 1}[tie]
    assert sum("table" in name or "output_weight" in name for name in names) == tables
    # A step of training moves all uses of a matrix together.
    tokens = make_tokens([4, 3])
    model(tokens, targets_of(tokens)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    table = model.target_embedding.table.weight
    assert torch.equal(model.output_weight, table) == (tie in ("target", "all"))
    assert torch.equal(source, table) == (tie in ("inputs", "all"))


@torch.no_grad()
def test_output_bias_is_added_to_the_logits(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(output_bias=True)
    source, target = make_tokens([4]), make_tokens([3])
    with_bias, bias = model(source, target), model.output_bias.clone()
    model.output_bias.zero_()
    torch.testing.assert_close(with_bias, model(source, target) + bias)


def test_own_width_of_heads(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(heads=5, head_width=4)
    attention = model.attentions()["enc", 0]
    assert attention.in_weight.shape == (3 * 20, 12)
    assert model(make_tokens([4]), make_tokens([3])).shape == (1, 4, 19)


def test_every_head_is_listed_once(make_model: Maker) -> None:
    model = make_model(encoder_layers=3, decoder_layers=1)
    heads = model.head_list()
    assert len(heads) == len(set(heads)) == (3 + 1 + 1) * 3
    assert {(h.site, h.layer) for h in heads} == set(model.attentions())


def test_a_sentence_longer_than_the_positions_is_an_error(
    make_model: Maker, make_tokens: Tokens
) -> None:
    model = make_model(max_positions=8)
    model(make_tokens([7]), make_tokens([7]))
    with pytest.raises(UserError, match="9 tokens is longer than the model's 8 positions"):
        model.encode(make_tokens([8]))
