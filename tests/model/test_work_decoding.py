"""What beam search costs, counted: one decoder step a position, of those that still need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from headcount.model.attention import Attention
from headcount.model.decoding import Search, beam_search
from headcount.model.transformer import Transformer
from work_counting import Operations, calls, rows, vocabulary_rows

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]

VOCABULARY = 61


@pytest.fixture
def model(make_model: Maker) -> Transformer:
    return make_model(vocabulary=(23, VOCABULARY), double=False)


def translate(model: Transformer, source: torch.Tensor, **settings: Any) -> list[int]:
    """The lengths of the best hypotheses, EOS counted."""
    found = beam_search(model, source, Search(**settings), start=2, eos=3)
    return [len(best[0].tokens) + 1 for best in found]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_one_step_a_position(
    model: Transformer, make_tokens: Tokens, beam: int, length: int
) -> None:
    """All sentences are made to end at the same place."""
    source = make_tokens([4, 7, 2])
    settings = {"beam": beam, "max_ratio": 0, "max_extra": length, "min_length": length}
    with (
        calls(Transformer, "encode", "start", "step", "decode") as called,
        calls(Attention, "keys_values") as projected,
    ):
        translate(model, source, **settings)
    assert called == {"encode": 1, "start": 1, "step": length}
    assert projected == {"keys_values": model.config.decoder_layers}  # of the source, once


def test_products_of_a_step_do_not_depend_on_beam_batch_or_past(
    model: Transformer, make_tokens: Tokens
) -> None:
    def products(lengths: list[int], beam: int, steps: int) -> int:
        with Operations() as operations:
            settings = {"max_ratio": 0, "max_extra": steps, "min_length": steps}
            translate(model, make_tokens(lengths), beam=beam, **settings)
        return operations.products()

    encoder, source = 4 * model.config.encoder_layers, model.config.decoder_layers
    # Six projections, four products inside attention, and the output layer.
    a_step = 10 * model.config.decoder_layers + 1
    for lengths, beam in (([3], 1), ([3], 4), ([5, 2, 5, 1], 4)):
        for steps in (1, 3, 8):
            assert products(lengths, beam, steps) == encoder + source + steps * a_step


def test_the_vocabulary_is_passed_over_twice_a_step(
    model: Transformer, make_tokens: Tokens
) -> None:
    """Logits and log-probabilities, of the hypotheses alone; all else is in place or smaller."""
    batch, beam, steps = 3, 4, 6
    with Operations() as operations:
        settings = {"max_ratio": 0, "max_extra": steps, "min_length": steps}
        translate(model, make_tokens([4, 4, 4]), beam=beam, **settings)
    wide = vocabulary_rows(VOCABULARY)

    def of_all(shape: tuple[int, ...]) -> bool:
        return wide(shape) and rows(shape) == batch * beam

    made = operations.made(of_all)
    assert made.count("log_softmax") == steps
    assert len(made) == 2 * steps


def test_what_is_finished_costs_nothing_more(model: Transformer, make_tokens: Tokens) -> None:
    """Every sentence has a limit of its own; the rows of all steps are the sum of these limits."""
    lengths, beam = [2, 9, 5], 2
    with Operations() as operations:
        settings = {"beam": beam, "max_ratio": 1.0, "max_extra": 0, "min_length": 20}
        translate(model, make_tokens(lengths), **settings)
    wide = vocabulary_rows(VOCABULARY)
    normalised = [
        rows(shape)
        for name, shapes in operations.done
        for shape in shapes
        if name == "log_softmax" and wide(shape)
    ]
    limits = [length + 1 for length in lengths]  # EOS counts
    assert sum(normalised) == beam * sum(limits)
