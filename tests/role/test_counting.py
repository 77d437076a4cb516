"""Counts of decoder and cross attention, and confidence, in loops over every query."""

from __future__ import annotations

import pytest
import torch

from headcount.heads import HeadLayout
from headcount.role.counting import SiteCounts, SiteHeads, padded_targets
from headcount.role.kind import Setting
from headcount.role.positional import OFFSET_NAMES
from headcount.role.sentences import SentenceBatch

LAYOUT = HeadLayout({"dec": ((0, 1), (2,)), "cross": ((), (0, 3))})
TARGETS = [[5, 6, 7, 8], [9], [], [5, 5, 6]]


def sources(real: torch.Tensor) -> SentenceBatch:
    """Source sentences of which only the tokens and the groups matter."""
    return SentenceBatch(torch.zeros_like(real), real, torch.arange(len(real)), None, None)


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
    counts = SiteCounts(heads, Setting(8))
    counts.add(sources(torch.ones(len(TARGETS), 3, dtype=torch.bool)), weights, real)
    positional = counts.roles["positional"]
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
        assert int(positional.hits[:, head, OFFSET_NAMES.index("-1")].sum()) == sum(back)
        assert int(positional.totals[:, OFFSET_NAMES.index("-1")].sum()) == len(back)


def test_the_query_that_produces_a_token_stands_for_it() -> None:
    torch.manual_seed(3)
    heads = SiteHeads.of(LAYOUT, "cross")
    assert heads.layers == {1: slice(0, 2)}
    _, real = padded_targets(TARGETS, pad=0, start=2)
    lengths = [3, 6, 2, 4]
    source_real = torch.arange(7) < torch.tensor(lengths)[:, None]
    weights = torch.rand(len(TARGETS), 2, 5, 7).softmax(-1)
    counts = SiteCounts(heads, Setting(8))
    counts.add(sources(source_real), {1: weights}, real)
    for head in range(2):
        best, distance = [], 0
        for row, (tokens, n) in enumerate(zip(TARGETS, lengths, strict=True)):
            for t in range(len(tokens)):
                seen = weights[row, head, t, :n].tolist()
                best.append(max(seen))
                distance += abs(seen.index(max(seen)) - int((t + 0.5) * n / len(tokens)))
        assert counts.confidence.values()[head] == pytest.approx(sum(best) / len(best))
        assert int(counts.roles["diagonal"].distances[head, 1]) == distance


def test_a_batch_of_empty_translations_counts_nothing() -> None:
    _, real = padded_targets([[], []], pad=0, start=2)
    batch = sources(torch.ones(2, 3, dtype=torch.bool))
    decoder = SiteCounts(SiteHeads.of(LAYOUT, "dec"), Setting(8))
    decoder.add(batch, {0: torch.ones(2, 2, 1, 1), 1: torch.ones(2, 1, 1, 1)}, real)
    cross = SiteCounts(SiteHeads.of(LAYOUT, "cross"), Setting(8))
    cross.add(batch, {1: torch.ones(2, 2, 1, 3)}, real)
    for counts in (decoder, cross):
        assert not any(tensor.any() for tensor in counts.tensors)
        assert set(counts.confidence.values()) == {None}
