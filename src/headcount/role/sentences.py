"""Sentences prepared for counting: tokens, the words they make up, and the arcs between words.

All of this depends on the data only, not on the model; so do the counts kept here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import GROUPS
from headcount.data.batches import evaluation_batches
from headcount.data.conllu import Sentence
from headcount.data.tokenizer import Tokenizer
from headcount.role.alignment import NO_WORD, Alignment, align, membership
from headcount.role.parses import word_spans
from headcount.role.relations import PERSONS, ROOT, SUBJECT, RelativePositions, canonical, person_of
from headcount.role.syntactic import Arcs, Words

CHUNK_SENTENCES = 4096  # read ahead, so that sentences of similar length share a batch


@dataclass(frozen=True)
class ReadySentence:
    """One sentence: token ids without EOS, the unit of each token, and arcs between units.

    `units` is None where the parse could not be mapped to the tokens. An arc is (head, dependent,
    relation); `number` counts sentences from 0; `target` are the tokens of its translation.
    """

    number: int
    ids: list[int]
    units: list[int] | None
    arcs: list[tuple[int, int, int]]
    target: list[int] | None = None
    text: str = ""

    @property
    def group(self) -> int:
        """The group whose counts the sentence goes to."""
        return self.number % GROUPS


@dataclass
class MappingReport:
    """How many sentences and parses could be used, and why others could not."""

    sentences: int = 0
    tokens: int = 0
    without_tokens: int = 0
    too_long: int = 0
    mapped: int = 0
    words: int = 0
    unmapped: int = 0
    joined_words: int = 0
    lost_words: int = 0
    lost_instances: int = 0
    unmapped_examples: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, int | list[int]]:
        """All counts by name."""
        return asdict(self)


class Preparation:
    """Prepares sentences, and counts everything that depends on the data alone."""

    def __init__(self, tokenizer: Tokenizer, relations: Sequence[str], positions: int) -> None:
        self.tokenizer = tokenizer
        self.relations = tuple(relations)
        self.longest = positions - 1 - len(tokenizer.before) - len(tokenizer.after)  # EOS: one
        self.mapping = MappingReport()
        self.persons: Counter[int] = Counter()
        self.offsets = RelativePositions(GROUPS, len(self.relations))
        self._labels: dict[str, tuple[int, bool]] = {}  # see `_known`

    def ready(
        self, text: str, parse: Sentence | None, target: list[int] | None = None, place: int = 0
    ) -> ReadySentence | None:
        """The prepared sentence; None, and counted, if the model cannot read it.

        `place` is its number in the data, for the report.
        """
        mapping = self.mapping
        pieces = self.tokenizer.text_pieces(text)
        if not pieces:
            mapping.without_tokens += 1
            return None
        if max(len(pieces), len(target or ())) > self.longest:
            mapping.too_long += 1
            return None
        number = mapping.sentences
        mapping.sentences += 1
        mapping.tokens += len(pieces)
        ids = [piece.id for piece in pieces]
        if parse is None:
            return ReadySentence(number, ids, None, [], target, text)
        spans = word_spans(parse, text)
        alignment = None if spans is None else align([(p.start, p.end) for p in pieces], spans)
        if alignment is None:
            mapping.unmapped += 1
            if len(mapping.unmapped_examples) < 10:
                mapping.unmapped_examples.append(place)
            return ReadySentence(number, ids, None, [], target, text)
        mapping.mapped += 1
        mapping.words += len(parse.words)
        mapping.joined_words += alignment.joined
        mapping.lost_words += sum(unit < 0 for unit in alignment.unit_of_word)
        arcs = self._arcs(parse, alignment, number % GROUPS)
        return ReadySentence(number, ids, alignment.units, arcs, target, text)

    def _arcs(
        self, parse: Sentence, alignment: Alignment, group: int
    ) -> list[tuple[int, int, int]]:
        """The instances of the wanted relations whose two ends can be told apart."""
        arcs: list[tuple[int, int, int]] = []
        units = alignment.unit_of_word
        for word in parse.words:
            relation, is_subject = self._labels.get(word.deprel) or self._known(word.deprel)
            if word.head == 0:
                continue
            if is_subject:
                self.persons[person_of(word.form, word.feats)] += 1
            if relation < 0:
                continue
            head, dependent = units[word.head - 1], units[word.id - 1]
            if head < 0 or dependent < 0 or head == dependent:
                self.mapping.lost_instances += 1
                continue
            arcs.append((head, dependent, relation))
            self.offsets.add(group, relation, word.id - word.head)
        return arcs

    def _known(self, label: str) -> tuple[int, bool]:
        """The number of a label's relation, -1 if it is not wanted, and whether it is `nsubj`."""
        name = canonical(label)
        number = self.relations.index(name) if name in self.relations else -1
        self._labels[label] = number, name == SUBJECT
        return self._labels[label]

    def person_shares(self) -> dict[str, float | int | None]:
        """Shares of first, second and third person among subjects, and their number."""
        total = sum(self.persons.values())
        shares: dict[str, float | int | None] = {"subjects": total}
        for person, name in enumerate(PERSONS, start=1):
            shares[name] = self.persons[person] / total if total else None
        return shares


def relations_of(sentences: Iterable[Sentence]) -> tuple[str, ...]:
    """Every relation of these parses, the most frequent first."""
    labels: Counter[str] = Counter()
    for sentence in sentences:
        labels.update(word.deprel for word in sentence.words)
    counts: Counter[str] = Counter()
    for label, count in labels.items():
        counts[canonical(label)] += count
    counts.pop(ROOT, None)
    return tuple(sorted(counts, key=lambda name: (-counts[name], name)))


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences as tensors.

    source: [batch, length], tokens + EOS, padded; real: [batch, length], true for tokens
    groups: [batch]
    """

    source: Tensor
    real: Tensor
    groups: Tensor
    words: Words
    arcs: Arcs

    @classmethod
    def of(
        cls,
        sentences: Sequence[ReadySentence],
        *,
        pad: int,
        eos: int,
        device: torch.device | str = "cpu",
    ) -> SentenceBatch:
        """Pad the sentences to the longest."""
        lengths = np.array([len(s.ids) for s in sentences])
        columns = np.arange(lengths.max() + 1)
        real = columns < lengths[:, None]  # [batch, length]
        source = np.full(real.shape, pad, dtype=np.int64)
        source[real] = [token for s in sentences for token in s.ids]
        source[np.arange(len(lengths)), lengths] = eos
        arcs = [(row, *arc) for row, s in enumerate(sentences) for arc in s.arcs]
        table = torch.tensor(arcs, dtype=torch.int64, device=device).reshape(len(arcs), 4)
        return cls(
            source=torch.from_numpy(source).to(device),
            real=torch.from_numpy(real).to(device),
            groups=torch.tensor([s.group for s in sentences], device=device),
            words=_words(sentences, real.shape[1], device),
            arcs=Arcs(*table.unbind(1)),
        )


def _words(sentences: Sequence[ReadySentence], length: int, device: torch.device | str) -> Words:
    """The words of the sentences that have arcs, and words of several tokens."""
    rows = [
        row
        for row, s in enumerate(sentences)
        if s.arcs and s.units is not None and s.units != list(range(len(s.ids)))
    ]
    units = np.full((len(rows), length), NO_WORD, dtype=np.int64)
    for place, row in enumerate(rows):
        of_row = sentences[row].units or []
        units[place, : len(of_row)] = of_row
    count = int(units.max(initial=NO_WORD)) + 1
    member = membership(torch.from_numpy(units).to(device), count)
    return Words(torch.tensor(rows, dtype=torch.int64, device=device), member)


def batches_of(
    sentences: Iterator[ReadySentence], batch_tokens: int
) -> Iterator[list[list[ReadySentence]]]:
    """Batches of similar length, one chunk of the stream at a time.

    The batches depend on the sentences alone, so that any number of processes can share them.
    """
    while chunk := list(islice(sentences, CHUNK_SENTENCES)):
        lengths = [len(sentence.ids) for sentence in chunk]
        yield [[chunk[i] for i in rows] for rows in evaluation_batches(lengths, batch_tokens)]
