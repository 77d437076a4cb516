"""Hypotheses that change places while they are written see their own past, and only that."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headcount.model.gating import remove_heads
from headcount.model.transformer import Transformer

START = 2


@settings(max_examples=20)
@given(
    beam=st.integers(1, 4),
    steps=st.integers(1, 40),
    seed=st.integers(0, 200),
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
)
@torch.no_grad()
def test_a_beam_equals_its_hypotheses_one_by_one(
    make_model: Callable[..., Transformer],
    make_tokens: Callable[..., torch.Tensor],
    beam: int,
    steps: int,
    seed: int,
    lengths: list[int],
) -> None:
    """Random moves, and sentences that leave at random, against whole prefixes without a cache.

    The model lacks some heads, perhaps all of a layer, and others have gates.
    """
    rng = random.Random(seed)
    model = make_model(seed, norm=rng.choice(["pre", "post"]))
    heads = model.head_list()
    model = remove_heads(model, rng.sample(heads, rng.randrange(len(heads))))
    for attention in model.attentions().values():
        if rng.random() < 0.5:
            attention.gate = torch.rand(len(attention.heads), dtype=torch.float64)
    memory, mask = model.encode(make_tokens(lengths, seed=seed))
    cache = model.start(memory, mask, beam)
    places = list(range(len(lengths)))  # which sentences are still there
    prefixes = [[[START] for _ in range(beam)] for _ in lengths]
    for _ in range(steps):
        last = torch.tensor([[text[-1] for text in prefixes[place]] for place in places])
        states = model.step(last, cache)
        if rng.random() < 0.2 and len(places) > 1:
            kept = sorted(rng.sample(range(len(places)), len(places) - 1))
            cache.keep_sentences(torch.tensor(kept))
            places, states = [places[k] for k in kept], states[kept]
        for row, place in enumerate(places):
            own_mask = None if mask is None else mask[[place] * beam]
            whole = model.decode(torch.tensor(prefixes[place]), memory[[place] * beam], own_mask)
            torch.testing.assert_close(states[row], whole[:, -1], rtol=1e-8, atol=1e-8)
        parents = [[rng.randrange(beam) for _ in range(beam)] for _ in places]
        cache.follow(torch.tensor(parents))
        for own, place in zip(parents, places, strict=True):
            prefixes[place] = [[*prefixes[place][p], rng.randrange(3, 19)] for p in own]
