"""What naming roles costs, counted: one encoder pass a batch, and no decoder."""

from __future__ import annotations

from typing import Any

import pytest

from headcount.model.attention import Attention
from headcount.model.transformer import Transformer
from headcount.role.analysis import roles as name_roles
from headcount.role.counting import SiteCounts
from work_counting import Operations, calls


@pytest.mark.parametrize("batch_tokens", [60, 100_000])
def test_one_encoder_pass_a_batch_and_no_decoder(place: Any, batch_tokens: int) -> None:
    run = place.run
    names = ("encode", "decode", "start", "step", "logits")
    with (
        calls(Transformer, *names) as called,
        calls(SiteCounts, "add") as counted,
        calls(Attention, "weights") as looked,
    ):
        name_roles(run, conllu=place.conllu, batch_tokens=batch_tokens, examples=False)
    assert called == {"encode": counted["add"]}
    assert looked["weights"] == counted["add"] * run.config.model.encoder_layers
    assert (counted["add"] == 1) == (batch_tokens > 60)


def test_projections_are_those_of_the_encoder(place: Any) -> None:
    """Queries with keys and values, `W^O` and two of the feed-forward network in each layer."""
    run = place.run
    with Operations() as operations:
        name_roles(run, conllu=place.conllu, batch_tokens=100_000, examples=False)
    assert operations.count("linear") == 4 * run.config.model.encoder_layers
