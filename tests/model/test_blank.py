"""Large models are made without drawing weights, and their weights are mapped, not copied."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from headcount import run as runs
from headcount.config import ModelConfig
from headcount.model import transformer
from headcount.model.transformer import Transformer
from headcount.run import load_run

SIZES = {"layers": 1, "heads": 2, "width": 8, "ff_width": 8}


def test_small_models_draw_as_ever() -> None:
    torch.manual_seed(1)
    expected = Transformer(ModelConfig(**SIZES), 9, 9).state_dict()
    torch.manual_seed(1)
    drawn = transformer.blank_model(ModelConfig(**SIZES), 9, 9, 0).state_dict()
    assert all(torch.equal(drawn[name], expected[name]) for name in expected)


def test_large_models_draw_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "LARGE", 1)
    before = torch.get_rng_state()
    model = transformer.blank_model(ModelConfig(**SIZES), 9, 9, 0)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.encoder_norm.weight.tolist() == [1.0] * 8  # what is not drawn is as ever


def test_the_estimate_is_near_the_number_of_parameters() -> None:
    for tie in ("none", "target", "inputs", "all"):
        config = ModelConfig(tie=tie, layers=2, width=64, heads=4, ff_width=128, decoder_heads=2)
        model = Transformer(config, 50, 50)
        count = sum(parameter.numel() for parameter in model.parameters())
        limit = transformer.LARGE
        try:
            transformer.LARGE = int(0.8 * count)
            assert transformer.is_large(config, 50, 50)
            transformer.LARGE = int(1.2 * count)
            assert not transformer.is_large(config, 50, 50)
        finally:
            transformer.LARGE = limit


def test_a_mapped_run_is_the_same_run(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = load_run(run_folder)
    monkeypatch.setattr(transformer, "LARGE", 1)
    monkeypatch.setattr(runs, "LARGE", 1)
    mapped = load_run(run_folder)
    tokens = torch.tensor([[5, 6, 7, 3]])
    with torch.no_grad():
        torch.testing.assert_close(mapped.model(tokens, tokens), copied.model(tokens, tokens))
    assert (mapped.model.output_weight is mapped.model.target_embedding.table.weight) == (
        copied.model.output_weight is copied.model.target_embedding.table.weight
    )
    with torch.no_grad():
        mapped.model.output_weight.add_(1.0)  # a private copy: the file stays as it is
    torch.testing.assert_close(load_run(run_folder).model.output_weight, copied.model.output_weight)
