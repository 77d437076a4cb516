"""Beam search against a slow one that knows no batch, no cache and no tricks."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headcount.errors import UserError
from headcount.heads import Head
from headcount.model.decoding import GREEDY, Hypothesis, Search, beam_search, best_of_rows
from headcount.model.gating import masked, remove_heads
from headcount.model.transformer import Transformer

PAD, UNK, START, EOS = 0, 1, 2, 3

Maker = Callable[..., Transformer]
Tokens = Callable[..., torch.Tensor]

searches = st.builds(
    Search,
    beam=st.integers(1, 4),
    length_penalty=st.sampled_from([0.0, 0.6, 1.0, 2.0]),
    normalisation=st.sampled_from(["wu", "length"]),
    max_ratio=st.sampled_from([0.0, 1.0]),
    max_extra=st.integers(1, 7),
    min_length=st.integers(0, 3),
    forbidden=st.sampled_from([(), (UNK,), (UNK, 5)]),
    renormalise=st.booleans(),
).map(lambda search: replace(search, nbest=search.beam))
batches = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def translate(model: Transformer, source: Tensor, search: Search) -> list[list[Hypothesis]]:
    return beam_search(model, source, search, start=START, eos=EOS)


@torch.no_grad()
def log_probabilities(
    model: Transformer, source: Tensor, prefixes: list[list[int]]
) -> list[list[float]]:
    """Of the token after each prefix, all of one length, for a source `[length]`, not padded."""
    targets = torch.tensor([[START, *prefix] for prefix in prefixes])
    logits = model(source.expand(len(prefixes), -1), targets)[:, -1]
    rows: list[list[float]] = logits.log_softmax(-1).tolist()
    return rows


def slow_beam_search(model: Transformer, source: Tensor, search: Search) -> list[Hypothesis]:
    """One sentence, as the docstring of `beam_search` says it."""
    limit = search.limit(len(source), model.config.max_positions)
    never = {PAD, START, *search.forbidden}
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[Hypothesis] = []
    for length in range(1, limit + 1):
        rows = log_probabilities(model, source, [prefix for _, prefix in live])
        banned = never | ({EOS} if length <= search.min_length else set())
        continuations = []
        for (score, prefix), row in zip(live, rows, strict=True):
            allowed = {token: value for token, value in enumerate(row) if token not in banned}
            share = math.log(sum(map(math.exp, allowed.values()))) if search.renormalise else 0.0
            continuations += [
                (score + value - share, prefix, token) for token, value in allowed.items()
            ]
        continuations.sort(key=lambda c: -c[0])
        live = []
        for rank, (score, prefix, token) in enumerate(continuations[: 2 * search.beam]):
            if rank < search.beam and (token == EOS or length == limit):
                text = prefix if token == EOS else [*prefix, token]
                finished.append(Hypothesis(text, search.score(score, length)))
            elif token != EOS:
                live.append((score, [*prefix, token]))
        live = live[: search.beam]
        finished = sorted(finished, key=lambda h: -h.score)[: search.beam]
        best = search.score(live[0][0], length) if live else -float("inf")
        if not live or (len(finished) == search.beam and best <= finished[-1].score):
            break
    return finished[: search.nbest]


def unpadded(source: Tensor) -> list[Tensor]:
    return [row[row != PAD] for row in source]


def assert_same(ours: list[Hypothesis], expected: list[Hypothesis]) -> None:
    assert [h.tokens for h in ours] == [h.tokens for h in expected]
    assert [h.score for h in ours] == pytest.approx([h.score for h in expected], abs=1e-9)


@settings(max_examples=40)
@given(
    lengths=batches,
    search=searches,
    size=st.sampled_from([6, 7, 19]),
    norm=st.sampled_from(["pre", "post"]),
    seed=st.integers(0, 1000),
)
def test_beam_search_is_the_slow_one(
    make_model: Maker,
    make_tokens: Tokens,
    lengths: list[int],
    search: Search,
    size: int,
    norm: str,
    seed: int,
) -> None:
    model = make_model(seed, norm=norm, vocabulary=(19, size))
    source = make_tokens(lengths, seed=seed)
    for row, ours in zip(unpadded(source), translate(model, source, search), strict=True):
        assert_same(ours, slow_beam_search(model, row, search))


@settings(max_examples=12)
@given(lengths=batches, seed=st.integers(0, 1000))
def test_beam_of_one_is_greedy(
    make_model: Maker, make_tokens: Tokens, lengths: list[int], seed: int
) -> None:
    model = make_model(seed)
    source = make_tokens(lengths, seed=seed)
    for row, (ours,) in zip(unpadded(source), translate(model, source, GREEDY), strict=True):
        text: list[int] = []
        for _ in range(GREEDY.limit(len(row), model.config.max_positions)):
            (scores,) = log_probabilities(model, row, [text])
            scores[PAD] = scores[START] = -float("inf")
            text.append(max(range(len(scores)), key=scores.__getitem__))
            if text[-1] == EOS:
                text.pop()
                break
        assert ours.tokens == text


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=2, max_size=9),
    search=searches,
    seed=st.integers(0, 10_000),
    padding=st.integers(0, 6),
)
def test_neither_company_nor_padding_changes_a_translation(
    make_model: Maker,
    make_tokens: Tokens,
    lengths: list[int],
    search: Search,
    seed: int,
    padding: int,
) -> None:
    """In float64: in float32 the last digits of a score do depend on the shapes of a batch."""
    rng = random.Random(seed)
    model = make_model(seed, norm=rng.choice(["pre", "post"]))
    source = make_tokens(lengths, seed=seed)
    together = translate(model, source, search)
    order = rng.sample(range(len(lengths)), len(lengths))
    size = rng.randint(1, len(lengths))
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        wider = torch.nn.functional.pad(source[rows], (0, padding), value=PAD)
        for row, ours in zip(rows, translate(model, wider, search), strict=True):
            assert_same(ours, together[row])


@settings(max_examples=15)
@given(
    seed=st.integers(0, 1000),
    penalty=st.sampled_from([0.0, 0.6, 1.5]),
    source=st.integers(0, 4),
)
def test_a_wide_beam_finds_the_best_of_all(
    make_model: Maker, make_tokens: Tokens, seed: int, penalty: float, source: int
) -> None:
    model = make_model(seed, vocabulary=(19, 7))
    tokens = make_tokens([source], seed=seed)
    search = Search(beam=7**3, nbest=5, length_penalty=penalty, max_ratio=0, max_extra=3)
    every: list[Hypothesis] = []
    grown: list[tuple[list[int], float]] = [([], 0.0)]
    for length in (1, 2, 3):
        rows = log_probabilities(model, tokens[0], [text for text, _ in grown])
        prefixes, grown = grown, []
        for (text, total), row in zip(prefixes, rows, strict=True):
            every.append(Hypothesis(text, search.score(total + row[EOS], length)))
            grown += [([*text, t], total + row[t]) for t in (UNK, *range(EOS + 1, 7))]
    # What has no end after three tokens is ended there.
    every += [Hypothesis(text, search.score(total, 3)) for text, total in grown]
    every.sort(key=lambda h: -h.score)
    (ours,) = translate(model, tokens, search)
    assert_same(ours, every[:5])


@settings(max_examples=25)
@given(lengths=batches, search=searches, seed=st.integers(0, 1000))
def test_what_a_translation_never_is(
    make_model: Maker, make_tokens: Tokens, lengths: list[int], search: Search, seed: int
) -> None:
    model = make_model(seed)
    source = make_tokens(lengths, seed=seed)
    for row, found in zip(unpadded(source), translate(model, source, search), strict=True):
        limit = search.limit(len(row), model.config.max_positions)
        assert 1 <= len(found) <= search.nbest
        assert len({tuple(h.tokens) for h in found}) == len(found)
        assert [h.score for h in found] == sorted((h.score for h in found), reverse=True)
        for hypothesis in found:
            assert not {PAD, START, EOS, *search.forbidden} & set(hypothesis.tokens)
            assert min(search.min_length, limit) <= len(hypothesis.tokens) <= limit


@settings(max_examples=60)
@given(
    rows=st.integers(1, 3),
    size=st.integers(1, 1500),
    count=st.integers(1, 12),
    ties=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_best_of_rows_are_the_best(rows: int, size: int, count: int, ties: bool, seed: int) -> None:
    torch.manual_seed(seed)
    values = torch.randn(rows, size, dtype=torch.float64)
    if ties:
        values = (values * 2).round()
    values[torch.rand_like(values) < 0.2] = -float("inf")
    best, places = best_of_rows(values, count)
    assert torch.equal(best, values.topk(min(count, size)).values)
    assert torch.equal(values.gather(1, places), best)
    for row in places.tolist():
        assert len(set(row)) == len(row)


def test_finished_sentences_leave_the_batch(
    make_model: Maker, make_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model()
    source = make_tokens([1, 4, 9, 15])
    search = Search(beam=2, max_ratio=1, max_extra=0, min_length=50)  # each ends at its limit
    sizes = []
    step = model.step

    def counted(tokens: Tensor, cache: Any) -> Tensor:
        sizes.append(tuple(tokens.shape))
        return step(tokens, cache)

    monkeypatch.setattr(model, "step", counted)
    translate(model, source, search)
    limits = [2, 5, 10, 16]
    assert sizes == [(sum(limit > done for limit in limits), 2) for done in range(16)]


@torch.no_grad()
def test_masked_and_removed_heads_translate_alike(make_model: Maker, make_tokens: Tokens) -> None:
    model = make_model(5)
    source = make_tokens([3, 8, 5])
    closed = [Head("enc", 1, 0), *(Head("dec", 0, i) for i in range(3)), Head("cross", 1, 2)]
    search = Search(beam=3, nbest=3)
    plain = translate(model, source, search)
    with masked(model, closed):
        expected = translate(model, source, search)
    for ours, theirs in zip(
        translate(remove_heads(model, closed), source, search), expected, strict=True
    ):
        assert_same(ours, theirs)
    assert [h[0].tokens for h in plain] != [h[0].tokens for h in expected]


def test_scores() -> None:
    wu = Search(length_penalty=0.6)
    assert wu.score(-3.0, 7) == pytest.approx(-3.0 / (12 / 6) ** 0.6)
    assert replace(wu, normalisation="length").score(-3.0, 7) == pytest.approx(-3.0 / 7**0.6)
    assert replace(wu, length_penalty=0.0).score(-3.0, 7) == -3.0


def test_limits() -> None:
    search = Search(max_ratio=1.5, max_extra=2)
    assert search.limit(source=5, positions=100) == 9
    assert search.limit(source=5, positions=8) == 8
    assert Search(max_ratio=0, max_extra=0).limit(source=5, positions=8) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam of 0"),
        ({"beam": 2, "nbest": 3}, "3 best translations"),
        ({"nbest": 0}, "0 best"),
        ({"length_penalty": -0.1}, "negative"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Search(**settings)
