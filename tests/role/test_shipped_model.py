"""What is said of the shipped models' encoder heads, worked out again with NumPy from their files.

That they have positional heads is the first thing that the demo shows; here it does not rest on
the package's model, its recordings or its statistics.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from headcount import rank
from headcount.data.tokenizer import Tokenizer
from headcount.errors import SHIPPED
from headcount.files import read_json, read_lines
from headcount.heads import Head
from headcount.role.analysis import roles
from headcount.run import load_run

SENTENCES = Path(__file__).parents[2] / "results" / "sentences.en"
HEADS, WIDTH, HEAD_WIDTH, BASE = 8, 128, 32, 100

Maps = list[list[np.ndarray]]
"""Attention of one sentence: layer, head, `[queries, keys]`."""


@pytest.fixture(scope="module", params=SHIPPED)
def shipped(request: pytest.FixtureRequest) -> Path:
    """The folder of a shipped model."""
    return SHIPPED[request.param]


@pytest.fixture(scope="module")
def maps(shipped: Path) -> list[Maps]:
    weights = {k: v.astype(np.float64) for k, v in load_file(shipped / "model.safetensors").items()}
    tokenizer = Tokenizer.load(shipped / "tokenizer.src.json")
    lines = list(read_lines(SENTENCES))
    return [encoder_attention(weights, [*tokenizer.encode(line), tokenizer.eos]) for line in lines]


def encoder_attention(weights: dict[str, np.ndarray], tokens: list[int]) -> Maps:
    """A pre-norm encoder, one sentence, head by head."""
    at = np.arange(len(tokens))
    angles = at[:, None] / BASE ** (np.arange(0, WIDTH, 2) / WIDTH)
    buckets = np.vectorize(bucket)(at - at[:, None])  # [queries, keys]
    x = weights["source_embedding.table.weight"][tokens] * WIDTH**0.5
    x = x + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    maps: Maps = []
    for layer in range(6):
        part = f"encoder.{layer}.self_attention."
        name = part + "attention."
        normed = layer_norm(x, weights, part + "norm")
        projected = normed @ weights[name + "in_weight"].T + weights[name + "in_bias"]
        maps.append([])
        outputs = []
        for head in range(HEADS):
            size = HEAD_WIDTH
            q, k, v = (projected[:, (i * HEADS + head) * size :][:, :size] for i in range(3))
            bias = weights[f"encoder_positions.{layer}.table"][buckets, head]
            scores = np.exp(q @ k.T / size**0.5 + bias)
            attention = scores / scores.sum(1, keepdims=True)
            maps[-1].append(attention)
            outputs.append(attention @ v)
        x = x + np.concatenate(outputs, 1) @ weights[name + "out_weight"].T
        x = x + weights[name + "out_bias"]
        part = f"encoder.{layer}.feed_forward."
        hidden = layer_norm(x, weights, part + "norm") @ weights[part + "expand.weight"].T
        hidden = np.maximum(hidden + weights[part + "expand.bias"], 0)
        x = x + hidden @ weights[part + "contract.weight"].T + weights[part + "contract.bias"]
    return maps


def bucket(offset: int) -> int:
    """Which of 32 ranges of distances: 8 single ones each way, then wider ones up to 128."""
    steps, right = abs(offset), 16 * (offset > 0)
    if steps < 8:
        return right + steps
    return right + min(15, 8 + int(8 * np.log(steps / 8) / np.log(128 / 8)))


def layer_norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    centred = x - x.mean(1, keepdims=True)
    scaled = centred / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    return scaled * weights[name + ".weight"] + weights[name + ".bias"]


def test_confidence(shipped: Path, maps: list[Maps]) -> None:
    ranking = rank(shipped, SENTENCES, by=["confidence"], sites=["enc"])
    assert len(ranking.heads) == 48
    for head in ranking.heads:
        largest = [row[:-1].max() for m in maps for row in m[head.layer][head.index][:-1]]
        assert ranking["confidence"][head] == pytest.approx(np.mean(largest), abs=1e-5)


def test_offsets(shipped: Path, maps: list[Maps], tmp_path: Path) -> None:
    run = load_run(shipped)
    run.folder = tmp_path
    roles(run, SENTENCES, relations=[], save=True)
    rows = read_json(tmp_path / "analysis" / "roles.json")["heads"]
    assert len(rows) == 48
    for row in rows:
        head = Head.parse(row["head"])
        for name, share in row["scores"]["positional"].items():
            offset = int(name)
            hits = [
                query + offset == weights[query, :-1].argmax()
                for weights in (m[head.layer][head.index] for m in maps)
                for query in range(len(weights) - 1)
                if 0 <= query + offset < len(weights) - 1
            ]
            assert share["value"] == pytest.approx(np.mean(hits), abs=2 / len(hits))


def test_heads_that_look_left_and_right(shipped: Path, maps: list[Maps]) -> None:
    """The shipped models are ones in which the paper's positional heads can be seen."""
    for offset in (-1, 1) if shipped == SHIPPED["demo"] else (-1,):
        shares = [
            np.mean(
                [
                    weights[query, :-1].argmax() == query + offset
                    for weights in (m[layer][head] for m in maps)
                    for query in range(len(weights) - 1)
                    if 0 <= query + offset < len(weights) - 1
                ]
            )
            for layer in range(6)
            for head in range(HEADS)
        ]
        assert max(shares) >= 0.9
