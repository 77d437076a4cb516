"""What ablation costs, counted: only what lies above a head's layer is computed again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headcount.model.layers import DecoderLayer, EncoderLayer
from headcount.model.transformer import Transformer
from headcount.ranking import ablation as module
from headcount.ranking.ablation import ablation
from work_counting import calls


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 2), (4, 1), (3, 5)])
def test_layers_below_are_computed_once(
    make_model: Callable[..., Transformer],
    make_tokens: Callable[..., torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    encoder: int,
    decoder: int,
) -> None:
    """All heads of a layer go in one pass, those of `dec` and `cross` together."""
    monkeypatch.setattr(module, "PASS_TOKENS", 10**6)
    model = make_model(encoder_layers=encoder, decoder_layers=decoder)
    source, labels = make_tokens([3, 5]), make_tokens([4, 2], seed=1)
    given = torch.where(labels == 3, 0, labels).roll(1, 1)
    given[:, 0] = 2
    with (
        calls(EncoderLayer, "forward") as encoded,
        calls(DecoderLayer, "forward") as decoded,
        calls(Transformer, "logits") as output,
    ):
        ablation(model, source, given, labels, model.head_list())
    above = [sum(layers - layer for layer in range(layers)) for layers in (encoder, decoder)]
    assert encoded["forward"] == encoder + above[0]
    assert decoded["forward"] == decoder + encoder * decoder + above[1]
    assert output["logits"] == 1 + encoder + decoder
