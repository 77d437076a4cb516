"""Activations by name: recorded, written, and always as before afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headcount.errors import UserError
from headcount.heads import Head
from headcount.model.decoding import Search, beam_search
from headcount.model.gating import masked
from headcount.model.recording import edit_places, find_places, place_list, record, record_places
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]


@torch.no_grad()
def test_names_are_what_is_recorded(make_model: Maker, make_tokens: Tokens) -> None:
    """The list of places is neither too long nor too short."""
    model = make_model()
    kinds = {kind for _, _, kind in place_list(model)}
    with record(model, kinds) as recording:
        model(make_tokens([5, 2]), make_tokens([4, 3]))
    assert set(recording) == set(place_list(model))


@torch.no_grad()
def test_recording_by_pattern(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(encoder_layers=2)
    with record_places(model, ["enc.*.weights", "dec_in.result"]) as tape:
        model(make_tokens([5, 2]), make_tokens([4, 3]))
    assert set(tape) == {("enc", 0, "weights"), ("enc", 1, "weights"), ("dec_in", 0, "result")}
    assert tape["enc.1.weights"] is tape["enc", 1, "weights"]
    assert tape["dec_in.result"] is tape["dec_in", 0, "result"]
    with pytest.raises(KeyError):
        tape["enc.1.outputs"]
    with pytest.raises(UserError, match=r"no activation 'enc\.7\.weights'"):
        find_places(model, "enc.7.weights")


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_every_place_can_be_written(make_model: Maker, make_tokens: Tokens, norm: str) -> None:
    """The identity changes nothing; anything else changes the logits, and nothing afterwards."""
    model = make_model(norm=norm)
    source, target = make_tokens([5]), make_tokens([4])
    plain = model(source, target)
    for place in place_list(model):
        name = ".".join(map(str, place))
        with edit_places(model, name, lambda x: x.clone()):
            torch.testing.assert_close(model(source, target), plain, rtol=1e-10, atol=1e-10)
        # Unequal changes: a constant would vanish in a layer norm.
        with edit_places(model, name, lambda x: x * torch.arange(1, 1 + x.shape[-1])):
            assert not torch.allclose(model(source, target), plain), name
    assert torch.equal(model(source, target), plain)
    assert model.tape.edits == {}


@torch.no_grad()
def test_zeroed_outputs_are_a_head_switched_off(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    source, target = make_tokens([5, 3]), make_tokens([4, 2])

    def without_head_1(outputs: torch.Tensor) -> torch.Tensor:
        outputs = outputs.clone()
        outputs[:, 1] = 0
        return outputs

    with masked(model, [Head("cross", 0, 1)]):
        expected = model(source, target)
    with edit_places(model, "cross.0.outputs", without_head_1):
        torch.testing.assert_close(model(source, target), expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_decoding_sees_edits_of_the_decoder(
    make_model: Maker, make_tokens: Tokens, beam: int
) -> None:
    """Step by step gives the same as with the gate that does the same."""
    model = make_model(decoder_layers=2).eval()
    source = make_tokens([6, 4, 3])
    search = Search(beam=beam, nbest=beam)
    heads = [Head("cross", 1, 0), Head("dec", 0, 2)]

    def without(index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def edit(x: torch.Tensor) -> torch.Tensor:
            x = x.clone()
            x[:, index] = 0
            return x

        return edit

    with masked(model, heads):
        expected = beam_search(model, source, search, start=2, eos=3)
    with (
        edit_places(model, "cross.1.outputs", without(0)),
        edit_places(model, "dec.0.outputs", without(2)),
    ):
        edited = beam_search(model, source, search, start=2, eos=3)
    assert [[h.tokens for h in best] for best in edited] == [
        [h.tokens for h in best] for best in expected
    ]
    scores = [[h.score for h in best] for best in edited]
    for own, theirs in zip(scores, expected, strict=True):
        assert own == pytest.approx([h.score for h in theirs], rel=1e-5)
    plain = beam_search(model, source, search, start=2, eos=3)
    assert plain != expected  # the heads matter


@torch.no_grad()
def test_an_exception_leaves_the_model_as_it_was(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    source, target = make_tokens([5]), make_tokens([4])
    plain = model(source, target)

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), edit_places(model, "enc.0.output", fails):
        model(source, target)
    with (
        pytest.raises(UserError, match=r"enc.0.output returned \[1, 6\]"),
        edit_places(model, "enc.0.output", lambda x: x[..., 0]),
    ):
        model(source, target)
    assert torch.equal(model(source, target), plain)


@torch.no_grad()
def test_masks_add_up(make_model: Maker, make_tokens: Tokens) -> None:
    """A head that an outer context switched off stays off inside an inner one of its layer."""
    model = make_model()
    source, target = make_tokens([5]), make_tokens([4])
    heads = [Head("enc", 0, 0), Head("enc", 0, 2)]
    with masked(model, heads):
        expected = model(source, target)
    with masked(model, heads[:1]), masked(model, heads[1:]):
        torch.testing.assert_close(model(source, target), expected)
