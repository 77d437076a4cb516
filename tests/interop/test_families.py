"""Twenty random configurations of each family: logits, tokens, greedy and beam translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import Maker

from headcount.interop.checking import make_sample
from headcount.interop.importing import import_run, their_logits
from headcount.model.decoding import Search
from headcount.translation import translate_tokens

CONFIGURATIONS = 20
FAMILIES = ("m2m100", "bart", "mbart", "t5", "mt5")


@pytest.fixture(scope="module")
def maker(
    transformers: Any, english: list[str], french: list[str], sentencepiece_models: tuple
) -> Maker:
    return Maker(transformers, [*english[:400], *french[:400]], sentencepiece_models[0])


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_random_configuration(
    maker: Maker, english: list[str], tmp_path: Path, family: str, seed: int
) -> None:
    made = maker.make(family, tmp_path / "model", seed)
    imported = import_run(tmp_path / "model", tmp_path / "run", **made.options)
    run = imported.run
    assert imported.difference < 1e-4
    assert run.config.model.family == family
    sample = make_sample(run, seed=100 + seed)
    expected = their_logits(made.model, sample, run.model.pad)
    assert expected.std() > 0.3
    logits = run.model(sample.source, sample.target)[sample.real]
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)

    lines = english[seed : seed + 4]
    prefix = made.options.get("prefix", "")
    framed = [prefix + line for line in lines]
    batch = made.tokenizer(framed, return_tensors="pt", padding=True)
    source, target = run.source_tokenizer, run.target_tokenizer
    sources = source.encode_batch(lines)
    for tokens, ids, mask in zip(sources, batch.input_ids, batch.attention_mask, strict=True):
        assert [*tokens, source.eos] == ids[mask > 0].tolist()
    for beam in (1, None):
        changes = {} if beam is None else {"num_beams": 1, "early_stopping": False}
        found = made.model.generate(**batch, **changes)
        expected_ids = [until(row[1:], target.eos) for row in found.tolist()]
        search = Search.of(run.config.search, beam=beam)
        written = [best[0].tokens for best in translate_tokens(run, sources, search)]
        assert written == expected_ids
        if made.tokenizer.is_fast:
            texts = made.tokenizer.batch_decode(found, skip_special_tokens=True)
            assert target.decode_batch(written) == [text.strip() for text in texts]


def until(tokens: list[int], end: int) -> list[int]:
    """The tokens before the end of the sentence."""
    return tokens[: tokens.index(end)] if end in tokens else tokens
