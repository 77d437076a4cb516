"""Recording looks on and changes nothing, and is over when its context is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.model.recording import record
from headcount.model.transformer import Transformer

ATTENTION = ("queries", "keys", "values", "weights", "outputs")
BLOCK = ("residual", "input", "output", "sum", "result")
KINDS = (*ATTENTION, *BLOCK, "memory", "hidden_in", "hidden")
PARTS = ("enc", "dec", "cross", "enc_ff", "dec_ff", "enc_in", "dec_in", "enc_out", "dec_out")

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]


@settings(max_examples=25)
@given(
    kinds=st.sets(st.sampled_from(KINDS)),
    parts=st.none() | st.sets(st.sampled_from(PARTS)),
    norm=st.sampled_from(["pre", "post"]),
    seed=st.integers(0, 20),
)
@torch.no_grad()
def test_recording_equals_not_recording(
    make_model: Maker,
    make_tokens: Tokens,
    kinds: set[str],
    parts: set[str] | None,
    norm: str,
    seed: int,
) -> None:
    model = make_model(seed, norm=norm)
    source, target = make_tokens([5, 2], seed=seed), make_tokens([4, 3], seed=seed)
    plain = model(source, target)
    with record(model, kinds, parts) as recording:
        recorded = model(source, target)
    torch.testing.assert_close(recorded, plain, rtol=1e-10, atol=1e-10)
    assert {kind for _, _, kind in recording} <= kinds
    assert {part for part, _, _ in recording} <= (set(PARTS) if parts is None else parts)
    assert model.tape.recording is None


@torch.no_grad()
def test_every_place_has_its_shape(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(encoder_layers=2, decoder_layers=1)
    with record(model, KINDS) as recording:
        model(make_tokens([5, 2]), make_tokens([3, 3]))
    batch, source, target, width, ff, heads, head = 2, 6, 4, 12, 16, 3, 4
    for (part, _, kind), tensor in recording.items():
        length = source if part.startswith("enc") else target
        keys = target if part == "dec" else source
        expected = {
            "queries": (batch, heads, length, head),
            "keys": (batch, heads, keys, head),
            "values": (batch, heads, keys, head),
            "weights": (batch, heads, length, keys),
            "outputs": (batch, heads, length, head),
            "memory": (batch, source, width),
            "hidden_in": (batch, length, ff),
            "hidden": (batch, length, ff),
        }.get(kind, (batch, length, width))
        assert tensor.shape == expected, (part, kind)
    attention = {(part, layer, kind) for part, layer in model.attentions() for kind in ATTENTION}
    assert attention <= set(recording)
    assert ("cross", 0, "memory") in recording
    assert ("enc_ff", 1, "hidden") in recording


@torch.no_grad()
def test_what_is_recorded_adds_up(make_model: Maker, make_tokens: Tokens) -> None:
    """The recorded parts of an attention block give the recorded whole."""
    model = make_model(norm="pre")
    with record(model, KINDS) as recording:
        model(make_tokens([5, 2]), make_tokens([3, 3]))
    for (site, layer), attention in model.attentions().items():
        at = {kind: recording[site, layer, kind] for kind in (*ATTENTION, *BLOCK)}
        torch.testing.assert_close(at["outputs"], at["weights"] @ at["values"])
        merged = at["outputs"].transpose(1, 2).flatten(2)
        output = merged @ attention.out_weight.T + attention.out_bias
        torch.testing.assert_close(at["output"], output)
        torch.testing.assert_close(at["result"], at["residual"] + at["output"])


def test_the_context_cleans_up_after_an_exception(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    recordings = []

    def fail() -> None:
        with record(model, ["weights"]) as recording:
            recordings.append(recording)
            model(make_tokens([3]), make_tokens([2]))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    (recording,) = recordings
    assert model.tape.recording is None
    assert ("enc", 0, "weights") in recording  # what was recorded stays with the caller
    kept = recording["enc", 0, "weights"]
    model(make_tokens([4]), make_tokens([2]))
    assert recording["enc", 0, "weights"] is kept


def test_nested_recordings(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    source, target = make_tokens([3]), make_tokens([2])
    with record(model, ["weights"], ["enc"]) as outer:
        model(source, target)
        seen = dict(outer)
        with record(model, ["outputs"], ["dec"]) as inner:
            model(make_tokens([5]), target)
        assert set(inner) == {("dec", 0, "outputs"), ("dec", 1, "outputs")}
        assert all(outer[place] is tensor for place, tensor in seen.items())
        model(make_tokens([6]), target)
    assert outer["enc", 0, "weights"].shape[-1] == 7  # the outer one went on after the inner


def test_gradients_reach_what_was_recorded(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model()
    with record(model, ["outputs"], ["enc"]) as recording:
        logits = model(make_tokens([3]), make_tokens([2]))
    (gradient,) = torch.autograd.grad(logits.sum(), [recording["enc", 0, "outputs"]])
    assert gradient.abs().sum() > 0
