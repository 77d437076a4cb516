"""Embeddings: scaled rows of a table plus sinusoidal positions, as many as are needed."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch

from headcount.config import ModelConfig
from headcount.model.embedding import position_table, sinusoids
from headcount.model.transformer import Transformer

Maker = Callable[..., Transformer]


def test_sinusoids_are_vaswanis() -> None:
    """`sin(pos / 10000^(2i / d))`, and the cosine of the same angle; sines first here."""
    width, table = 8, sinusoids(50, 8)
    for position in (0, 1, 7, 49):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            assert float(table[position, i]) == pytest.approx(math.sin(angle), abs=1e-5)
            assert float(table[position, width // 2 + i]) == pytest.approx(
                math.cos(angle), abs=1e-5
            )


def test_wavelengths_of_positions(make_model: Maker) -> None:
    embedding = make_model(position_base=100.0).source_embedding
    width = embedding.positions.shape[1]
    longest = width // 2 - 1  # the slowest sine
    angle = 40 / 100 ** (2 * longest / width)
    assert float(embedding.positions[40, longest]) == pytest.approx(math.sin(angle), abs=1e-5)
    torch.testing.assert_close(
        position_table(50, make_model().config), sinusoids(50, width), rtol=0, atol=0
    )


@pytest.mark.parametrize(("scaled", "factor"), [(True, 12**0.5), (False, 1.0)])
@torch.no_grad()
def test_rows_plus_positions(make_model: Maker, scaled: bool, factor: float) -> None:
    embedding = make_model(embedding_scale=scaled).source_embedding
    tokens = torch.tensor([[5, 6, 5]])
    rows = embedding.table.weight[tokens] * factor
    close = partial(torch.testing.assert_close, rtol=1e-6, atol=1e-6)
    close(embedding(tokens), (rows + sinusoids(3, 12)).to(torch.float64))
    close(embedding.step(tokens[0], 4), (rows[0] + sinusoids(5, 12)[4]).to(torch.float64))


@torch.no_grad()
def test_positions_grow_with_the_sentence(make_model: Maker) -> None:
    embedding = make_model(max_positions=1000).source_embedding
    before = len(embedding.positions)
    tokens = torch.randint(4, 19, (1, before + 40))
    whole = embedding(tokens)
    assert len(embedding.positions) >= before + 40
    for position in (before + 39, 2 * before + 200):  # inside the grown table, and beyond it
        grown = make_model(max_positions=1000).source_embedding.step(tokens[0, -1:], position)
        expected = whole[0, -1] - sinusoids(before + 40, 12)[-1] + sinusoids(position + 1, 12)[-1]
        torch.testing.assert_close(grown[0], expected, rtol=1e-5, atol=1e-5)


def test_positions_are_not_weights(make_model: Maker) -> None:
    assert not any("positions" in name for name in make_model().state_dict())


@torch.no_grad()
def test_first_biases_of_distances(make_model: Maker) -> None:
    """With a spread, the later heads begin with distances of their own; else hardly any has one."""
    for spread, expected in ((None, [12**-0.5] * 3), ((0.0, 4.0), [0.0, 2.0, 4.0])):
        model = make_model(
            heads=3, relative_positions="layer", position_buckets=200, position_distance=400,
            position_spread=spread,
        )  # fmt: skip
        for table in model.encoder_positions.parameters():
            assert table.std(0).tolist() == pytest.approx(expected, rel=0.3)


def test_a_spread_of_the_lowest_layers(make_model: Maker) -> None:
    model = make_model(
        encoder_layers=3, relative_positions="layer", position_spread=(3.0, 3.0),
        position_spread_layers=2,
    )  # fmt: skip
    low, middle, high = (table.std() for table in model.encoder_positions.parameters())
    assert min(low, middle) > 2
    assert high < 1


def test_a_spread_of_biases_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="position_spread needs relative_positions"):
        ModelConfig(position_spread=(0.0, 3.0))
    for settings in ({"relative_positions": "layer"}, {"position_spread": (0.0, 3.0)}):
        with pytest.raises(ValueError, match="position_spread"):
            ModelConfig(position_spread_layers=2, **settings)
