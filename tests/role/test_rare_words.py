"""Which tokens are the rarest: ties, frequent tokens, padding."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from headcount import load_run, roles
from headcount.role.head_roles import Criteria
from headcount.role.kind import Setting, SiteBatch
from headcount.role.rare_words import Frequencies, RareWords, rare_tokens, token_counts
from headcount.role.sentences import SentenceBatch

#                  pad unk  <s> eos  4   5  6  7  8
COUNTS = np.array([0, 50, 0, 900, 90, 70, 5, 5, 1])
SPECIAL = {0, 2, 3}


def places_of(mask: torch.Tensor) -> list[list[int]]:
    return [row.nonzero().flatten().tolist() for row in mask]


def test_the_most_frequent_tokens_are_no_special_ones() -> None:
    assert Frequencies.of(COUNTS, SPECIAL, 2).frequent.nonzero().flatten().tolist() == [4, 5]
    everything = Frequencies.of(COUNTS, SPECIAL, 500).frequent
    assert everything.nonzero().flatten().tolist() == [1, 4, 5, 6, 7, 8]


def test_the_rarest_and_the_two_rarest() -> None:
    ids = torch.tensor(
        [
            [4, 8, 6, 5, 3, 0],  # 8 is rarest, then 6
            [4, 8, 8, 6, 3, 0],  # 8 stands twice and fills both places
            [6, 4, 7, 5, 3, 0],  # 6 and 7 are equally rare
            [8, 6, 7, 4, 3, 0],  # after 8, 6 and 7 are equally rare
            [4, 5, 4, 3, 0, 0],  # frequent tokens only: does not count
            [8, 3, 0, 0, 0, 0],  # one token
        ]
    )
    real = (ids != 0) & (ids != 3)
    rare = rare_tokens(ids, real, Frequencies.of(COUNTS, SPECIAL, 2))
    assert places_of(rare.keys["rarest"]) == [[1], [1, 2], [0, 2], [0], [], [0]]
    assert places_of(rare.keys["two rarest"]) == [[1, 2], [1, 2], [0, 2], [0, 1, 2], [], [0]]
    assert rare.queries.sum(1).tolist() == [4, 4, 4, 4, 0, 1]


def test_counts_and_chance() -> None:
    ids = torch.tensor([[4, 8, 6, 5, 3], [4, 5, 3, 0, 0]])
    real = (ids != 0) & (ids != 3)
    places = torch.tensor([[[1, 1, 2, 0, 1], [2, 2, 2, 2, 1]], [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]])
    frequencies = Frequencies.of(COUNTS, SPECIAL, 2)
    counts = RareWords().counts(Setting(8, groups=3, heads=2, frequencies=frequencies))
    groups = torch.tensor([2, 0])
    sentences = SentenceBatch(ids, real, groups, None, None)
    batch = SiteBatch(real, real, groups, sentences)
    counts.begin(batch)
    counts.add(slice(0, 2), torch.empty(0), places, batch)
    assert counts.hits[2].tolist() == [[2, 3], [0, 4]]  # EOS as a query is left out
    assert counts.hits[:2].sum() == 0
    assert counts.totals.tolist() == [[0, 0], [0, 0], [4, 4]]
    assert counts.baselines().tolist() == [1 / 4, 2 / 4]
    assert counts.facts() == {"sentences": 1, "queries": 4}


def test_tokens_are_counted_in_a_text_for_a_run_that_has_no_frequencies(tmp_path: Path) -> None:
    lines = ["The cat sees the dog.", "The dog sleeps.", "A rhinoceros sees the cat."]
    text = tmp_path / "text.en"
    text.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    own = load_run("demo")
    counts = Counter(token for line in lines for token in own.source_tokenizer.encode(line))
    known = np.array([counts[token] for token in range(own.source_tokenizer.size)])
    assert np.array_equal(token_counts(own.source_tokenizer, lines), known)
    without = replace(own, source_frequencies=None)
    criteria = Criteria(frequent=1)
    found = roles(without, lines, relations=[], criteria=criteria, frequencies=text)
    expected = roles(replace(own, source_frequencies=known), lines, relations=[], criteria=criteria)
    assert found.to_json() == expected.to_json()
    assert any(line.kind == "rare words" for line in found.best)
    assert not any(line.kind == "rare words" for line in roles(without, lines, relations=[]).best)
