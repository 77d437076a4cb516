"""Confidence, one query and one key at a time."""

from __future__ import annotations

import torch

from headcount.model.recording import record
from headcount.ranking.evidence import attentions_of
from headcount.ranking.measures import confidence


def slow_confidence(
    recording, site: str, layer: int, row: int, source: int, target: int, head: int
):
    """`source` and `target` count real tokens: without EOS, START and padding."""
    weights = recording[site, layer, "weights"][row, head]
    found = []
    for token in range(source if site == "enc" else target):
        if site == "enc":
            query, keys = token, range(source)
        elif site == "dec":
            query, keys = token + 1, range(1, token + 2)  # START stands before the tokens
        else:
            query, keys = token, range(source)  # the query that writes this token
        found.append(max(float(weights[query, key]) for key in keys))
    return found


def test_confidence_is_the_mean_largest_weight_over_real_tokens(tiny, make_batch):
    model = tiny()
    sources, steps = [5, 3, 2], [4, 3, 1]  # the last sentence has an empty translation
    source, prefix = make_batch(sources, steps)
    with torch.no_grad(), record(model, {"weights"}) as recording:
        memory, mask = model.encode(source)
        model.decode(prefix, memory, mask)
    places = attentions_of(model, ("enc", "dec", "cross"))
    sums, counts = confidence(recording, source, [n - 1 for n in steps], places, eos=3)
    column = 0
    for site, layer in places:
        for head in range(2):
            for row, (length, count) in enumerate(zip(sources, steps, strict=True)):
                slow = slow_confidence(recording, site, layer, row, length - 1, count - 1, head)
                assert counts[row, column] == len(slow)
                torch.testing.assert_close(float(sums[row, column]), float(sum(slow)))
            column += 1
    assert column == sums.shape[1] == 12


def test_a_batch_of_empty_translations(tiny, make_batch):
    model = tiny()
    source, prefix = make_batch([2, 2], [1, 1])
    with torch.no_grad(), record(model, {"weights"}) as recording:
        memory, mask = model.encode(source)
        model.decode(prefix, memory, mask)
    places = attentions_of(model, ("dec", "cross"))
    sums, counts = confidence(recording, source, [0, 0], places, eos=3)
    assert not sums.any()
    assert not counts.any()
