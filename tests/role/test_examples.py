"""The sentence in which a head is seen best, and the sample that it is chosen from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from headcount.heads import Head
from headcount.role.analysis import roles
from headcount.role.examples import Sample, Thinned, _best_sentence
from headcount.role.head_roles import Criteria
from headcount.role.kind import Setting
from headcount.role.relations import RelativePositions
from headcount.role.result import Roles
from headcount.role.sentences import ReadySentence
from headcount.role.syntactic import SyntacticCounts

if TYPE_CHECKING:
    from conftest import Place


@pytest.mark.parametrize("total", [0, 3, 9, 10, 11, 57, 1000])
def test_a_thinned_stream_is_evenly_spread(total: int) -> None:
    sample = Thinned(5)
    for number in range(total):
        sample.add(ReadySentence(number, [1], None, []))
    numbers = [sentence.number for sentence in sample.items]
    assert numbers == list(range(0, total, sample.step))
    assert min(total, 5) <= len(numbers) < 10


def test_rulers_and_tables_are_no_handy_sentences() -> None:
    sample = Sample()
    for number, text in enumerate(["_" * 12, "| 12 | 3.5 |", "She reads the letter again."]):
        sample.add(ReadySentence(number, [1] * 12, None, [], text=text))
    assert [sentence.number for sentence in sample.handy.items] == [2]
    assert [sentence.number for sentence in sample.others.items] == [0, 1]


def test_the_example_shows_the_role(place: Place) -> None:
    """Counted again from the argmax tokens that are stored with the sentence."""
    result = roles(
        place.run, place.source, relations=[], sites=["enc", "dec"], reference=place.reference,
        criteria=Criteria(threshold=0.01),
    )  # fmt: skip
    tokens = place.run.source_tokenizer.tokens()
    lines = [sentence.text for sentence in place.sentences]
    shown = 0
    for head, found in result.heads.items():
        for role in found.roles:
            example = role.seen_best
            if role.kind != "positional" or example is None:
                continue
            shown += 1
            assert example.sentence in lines
            ids = place.run.source_tokenizer.encode(example.sentence)
            assert example.tokens == tuple(tokens[id_] for id_ in ids)
            queries = example.tokens if head.site == "enc" else example.target_tokens
            assert queries is not None
            assert len(example.argmax) == len(queries)
            offset = int(role.name)
            hits = [key - query == offset for query, key in enumerate(example.argmax)]
            possible = [0 <= query + offset < len(queries) for query in range(len(queries))]
            assert (example.hits, example.instances) == (sum(hits), sum(possible))
            assert 0 < example.confidence <= 1
    assert shown >= 4
    assert Roles.from_json(result.to_json()) == result


def test_no_examples_where_none_are_asked_for(place: Place) -> None:
    criteria = Criteria(threshold=0.01)
    result = roles(place.run, place.source, relations=[], criteria=criteria, examples=False)
    named = [role for found in result.heads.values() for role in found.roles]
    assert named
    assert all(role.seen_best is None for role in named)


def test_the_queries_of_a_relation_are_the_tokens_it_looks_from() -> None:
    """A subject of two tokens, its verb, and another word."""
    sentence = ReadySentence(0, [5, 6, 7, 8], [0, 0, 1, 2], [(1, 0, 0), (1, 2, 1)])
    counts = SyntacticCounts(Setting(longest=8, relations=["nsubj", "obj"], heads=1))
    shown = {name: counts.queries(sentence, i) for i, name in enumerate(counts.names)}
    assert shown == {"nsubj v → s": [2], "nsubj s → v": [0, 1], "obj v → o": [2], "obj o → v": [3]}


def test_what_a_fixed_offset_finds_shows_no_syntax() -> None:
    """Subjects stand before their verbs in most of the text, but not in all of this sample."""
    arcs = [[(1, 0, 0)], [(2, 1, 0)], [(4, 1, 0), (6, 5, 0)], [(3, 0, 1)]]
    sample = [ReadySentence(n, [1] * 8, list(range(8)), each) for n, each in enumerate(arcs)]
    text = RelativePositions(groups=1, relations=2)
    for offset in (-1, -1, -1, -3, -3):  # dependent minus head, in the whole text
        text.add(0, 0, offset)
    setting = Setting(longest=8, relations=["nsubj", "obj"], heads=1, groups=4, offsets=text)
    counts = SyntacticCounts(setting)
    assert [counts.baseline_hits(sample, name) for name in (0, 1)] == [[1, 1, 1, 0]] * 2
    assert counts.baseline_hits(sample[2:3] * 2, 0) == [1, 1]  # whatever the sample has
    assert counts.baseline_hits(sample, 2) == [0, 0, 0, 0]  # a relation that the text lacks
    counts.totals[:, 0] = torch.tensor([1, 1, 2, 0])
    counts.hits[:, 0, 0] = torch.tensor([1, 1, 2, 0])
    confidence = SimpleNamespace(sums=torch.full((4, 1), 2**31), queries=torch.full((4,), 8))
    head = Head("enc", 0, 0)
    site = SimpleNamespace(
        roles={"syntactic": counts}, heads=SimpleNamespace(heads=[head]), confidence=confidence
    )
    assert _best_sentence(head, "syntactic", counts.names[0], site, sample) == 2
    counts.hits[2, 0, 0] = 1  # which of the two it is, is not known: no more than the offset finds
    counts.totals[0, 0] = 3
    assert _best_sentence(head, "syntactic", counts.names[0], site, sample) == 1
