"""Sentences made ready: what is counted, left out and reported."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from headcount.data.conllu import Sentence, parse_conllu
from headcount.data.tokenizer import Tokenizer
from headcount.role.sentences import (
    CHUNK_SENTENCES,
    Preparation,
    ReadySentence,
    SentenceBatch,
    batches_of,
    relations_of,
)

if TYPE_CHECKING:
    from conftest import Place


def parsed(*rows: str, text: str) -> Sentence:
    lines = [f"# text = {text}"]
    for row in rows:
        number, form, feats, head, deprel = row.split()
        lines.append("\t".join([number, form, "_", "_", "_", feats, head, deprel, "_", "_"]))
    return next(parse_conllu(lines))


SENTENCE = parsed(
    "1 We Person=1 3 nsubj",
    "2-3 cannot _ _ _",
    "2 can _ 4 aux",
    "3 not _ 4 advmod",
    "4 see _ 0 root",
    "4.1 saw _ _ _",
    "5 old _ 6 amod",
    "6 dogs _ 4 dobj",
    text="We cannot see old dogs",
)


def tokenizer() -> Tokenizer:
    """One token for each word of the sentence: `cannot` is one, too."""
    return Tokenizer.train([SENTENCE.text] * 50, 200)


def test_arcs_are_between_the_words_that_tokens_can_tell_apart() -> None:
    preparation = Preparation(tokenizer(), ("nsubj", "obj", "amod", "aux"), 32)
    ready = preparation.ready(SENTENCE.text, SENTENCE)
    assert ready is not None
    assert ready.units == [0, 1, 2, 3, 4]  # We cannot see old dogs
    assert ready.arcs == [(1, 0, 0), (2, 1, 3), (4, 3, 2), (2, 4, 1)]
    assert preparation.mapping.joined_words == 1
    # Offsets are in the parse's own words.
    assert preparation.offsets.distribution(0) == {-2: 1}
    assert preparation.offsets.distribution(3) == {-2: 1}
    assert preparation.person_shares() == {"subjects": 1, "first": 1.0, "second": 0, "third": 0}


def test_an_arc_within_one_token_is_counted_as_lost() -> None:
    sentence = parsed(
        "1 see _ 0 root", "2-3 cannot _ _ _", "2 can _ 1 obj", "3 not _ 2 advmod",
        text="see cannot",
    )  # fmt: skip
    preparation = Preparation(tokenizer(), ("advmod", "obj"), 32)
    ready = preparation.ready(sentence.text, sentence)
    assert ready is not None
    assert ready.arcs == [(0, 1, 1)]
    assert preparation.mapping.lost_instances == 1


def test_sentences_that_cannot_be_used_are_counted() -> None:
    preparation = Preparation(tokenizer(), ("nsubj",), 8)
    assert preparation.ready("We see old dogs see old dogs see", None) is None  # 8 tokens and EOS
    assert preparation.ready("We see", None, target=[5] * 8) is None
    assert preparation.ready("▁", None) is None
    ready = preparation.ready("We see dogs", SENTENCE, place=17)
    assert ready is not None
    assert ready.units is None
    mapping = preparation.mapping
    assert (mapping.sentences, mapping.too_long, mapping.without_tokens) == (1, 2, 1)
    assert (mapping.mapped, mapping.unmapped, mapping.unmapped_examples) == (0, 1, [17])


def test_all_relations_of_the_parses_by_frequency() -> None:
    relations = relations_of([SENTENCE, SENTENCE])
    assert set(relations) == {"nsubj", "aux", "advmod", "amod", "obj"}


def test_a_batch_as_tensors() -> None:
    first = ReadySentence(1000, [7, 8, 9], [0, 0, 1], [(1, 0, 2)])
    second = ReadySentence(5, [6], None, [])
    batch = SentenceBatch.of([first, second], pad=0, eos=3)
    assert batch.source.tolist() == [[7, 8, 9, 3], [6, 3, 0, 0]]
    assert batch.real.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert batch.groups.tolist() == [0, 5]
    assert batch.words.rows.tolist() == [0]
    assert batch.words.member.tolist() == [[[1, 0], [1, 0], [0, 1], [0, 0]]]
    assert [part.tolist() for part in vars(batch.arcs).values()] == [[0], [1], [0], [2]]
    empty = SentenceBatch.of([second], pad=0, eos=3)
    assert empty.arcs.row.dtype == torch.int64
    assert len(empty.arcs.row) == 0
    assert len(empty.words.rows) == 0


def test_words_that_are_tokens_need_no_word_attention() -> None:
    whole = ReadySentence(0, [7, 8], [0, 1], [(1, 0, 0)])
    pieces = ReadySentence(1, [7, 8, 9], [0, 1, 1], [(1, 0, 0)])
    joined = ReadySentence(2, [7, 8, 9], [0, 0, 1], [])  # has nothing to be measured on
    batch = SentenceBatch.of([whole, pieces, joined], pad=0, eos=3)
    assert batch.words.rows.tolist() == [1]
    assert batch.words.member.sum((1, 2)).tolist() == [3]


def test_the_stream_is_read_a_chunk_at_a_time() -> None:
    """Memory does not grow with the corpus: no more than a chunk is ever read ahead."""
    read = itertools.count()

    def endless() -> itertools.chain[ReadySentence]:
        return (ReadySentence(next(read), [5] * (1 + i % 7), None, []) for i in itertools.count())

    stream = batches_of(endless(), 64)
    for chunk in range(1, 3):
        batches = next(stream)
        assert next(read) <= chunk * CHUNK_SENTENCES + chunk
        assert sum(map(len, batches)) == CHUNK_SENTENCES
        assert all(sum(len(row.ids) + 1 for row in batch) <= 64 for batch in batches)


def test_the_built_in_treebank_maps_completely(place: Place) -> None:
    run = place.run
    preparation = Preparation(run.source_tokenizer, ("nsubj", "obj", "amod", "advmod"), 64)
    for sentence in place.sentences:
        preparation.ready(sentence.text, sentence)
    mapping = preparation.mapping
    assert (mapping.mapped, mapping.unmapped) == (len(place.sentences), 0)
    assert mapping.words == sum(len(sentence.words) for sentence in place.sentences)
