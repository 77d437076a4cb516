"""Counts of decoder and cross attention, and confidence, in loops over every query."""

from __future__ import annotations

import pytest
import torch

from headcount.heads import HeadLayout
from headcount.roles.counting import CrossCounts, DecoderCounts, SiteHeads, padded_targets

LAYOUT = HeadLayout({"dec": ((0, 1), (2,)), "cross": ((), (0, 3))})
TARGETS = [[5, 6, 7, 8], [9], [], [5, 5, 6]]


def causal_weights(heads: int, length: int) -> torch.Tensor:
    scores = torch.rand(len(TARGETS), heads, length, length)
    return scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)


def test_decoder_input_and_its_tokens() -> None:
    ids, real = padded_targets(TARGETS, pad=0, start=2)
    assert ids.tolist() == [[2, 5, 6, 7, 8], [2, 9, 0, 0, 0], [2, 0, 0, 0, 0], [2, 5, 5, 6, 0]]
    assert real.sum(1).tolist() == [4, 1, 0, 3]


def test_decoder_heads_leave_start_out() -> None:
    torch.manual_seed(2)
    heads = SiteHeads.of(LAYOUT, "dec")
    assert heads.layers == {0: slice(0, 2), 1: slice(2, 3)}
    _, real = padded_targets(TARGETS, pad=0, start=2)
    weights = {0: causal_weights(2, 5), 1: causal_weights(1, 5)}
    counts = DecoderCounts(heads, longest=8)
    counts.add(weights, real, torch.arange(len(TARGETS)))
    stacked = torch.cat([weights[0], weights[1]], 1)
    for head in range(3):
        best, back = [], []
        for row, tokens in enumerate(TARGETS):
            for i in range(1, len(tokens) + 1):
                seen = stacked[row, head, i, 1 : i + 1].tolist()
                best.append(max(seen))
                if i > 1:
                    back.append(seen.index(max(seen)) + 1 == i - 1)
        assert counts.confidence.values()[head] == pytest.approx(sum(best) / len(best))
        assert int(counts.positional.hits[:, head, counts.positional.reach - 1].sum()) == sum(back)
        assert int(counts.positional.possible[:, counts.positional.reach - 1].sum()) == len(back)


def test_the_query_that_produces_a_token_stands_for_it() -> None:
    torch.manual_seed(3)
    heads = SiteHeads.of(LAYOUT, "cross")
    assert heads.layers == {1: slice(0, 2)}
    _, real = padded_targets(TARGETS, pad=0, start=2)
    sources = [3, 6, 2, 4]
    source_real = torch.arange(7) < torch.tensor(sources)[:, None]
    weights = torch.rand(len(TARGETS), 2, 5, 7).softmax(-1)
    counts = CrossCounts(heads, longest=8)
    counts.add({1: weights}, source_real, real, torch.arange(len(TARGETS)))
    for head in range(2):
        best, distance = [], 0
        for row, (tokens, n) in enumerate(zip(TARGETS, sources, strict=True)):
            for t in range(len(tokens)):
                seen = weights[row, head, t, :n].tolist()
                best.append(max(seen))
                distance += abs(seen.index(max(seen)) - int((t + 0.5) * n / len(tokens)))
        assert counts.confidence.values()[head] == pytest.approx(sum(best) / len(best))
        assert int(counts.diagonal.distances[head, 1]) == distance


def test_a_batch_of_empty_translations_counts_nothing() -> None:
    _, real = padded_targets([[], []], pad=0, start=2)
    decoder = DecoderCounts(SiteHeads.of(LAYOUT, "dec"), longest=8)
    decoder.add({0: torch.ones(2, 2, 1, 1), 1: torch.ones(2, 1, 1, 1)}, real, torch.arange(2))
    cross = CrossCounts(SiteHeads.of(LAYOUT, "cross"), longest=8)
    source_real = torch.ones(2, 3, dtype=torch.bool)
    cross.add({1: torch.ones(2, 2, 1, 3)}, source_real, real, torch.arange(2))
    for counts in (decoder, cross):
        assert not any(tensor.any() for tensor in counts.tensors)
        assert set(counts.confidence.values()) == {None}
