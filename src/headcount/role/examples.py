"""The sentence in which each role of a head is seen best.

Which heads have a role is known only after all sentences were counted, so that a sample of them is
read once more: a few hundred at most, evenly spread, of a length that is easy to look at.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from headcount.heads import Head
from headcount.role.counting import FIXED_POINT, SiteCounts
from headcount.role.head_roles import Example, HeadRoles
from headcount.role.sentences import ReadySentence

SHORTEST, LONGEST = 10, 25
HANDY, OTHERS = 300, 50
MOSTLY_LETTERS = 0.9


@dataclass
class Thinned:
    """Evenly spread items of a stream of unknown length: `limit` to twice as many."""

    limit: int
    items: list[ReadySentence] = field(default_factory=list)
    step: int = 1
    seen: int = 0

    def add(self, item: ReadySentence) -> None:
        """Keep every `step`-th item; when there are too many, every second of these."""
        if self.seen % self.step == 0:
            self.items.append(item)
            if len(self.items) >= 2 * self.limit:
                self.items = self.items[::2]
                self.step *= 2
        self.seen += 1


class Sample:
    """Sentences to choose examples from: most of a readable length, and a few others."""

    def __init__(self) -> None:
        self.handy, self.others = Thinned(HANDY), Thinned(OTHERS)

    def add(self, sentence: ReadySentence) -> None:
        """Take note of a sentence of the stream."""
        (self.handy if _is_handy(sentence) else self.others).add(sentence)

    def sentences(self) -> list[ReadySentence]:
        """The sample, numbered from 0, so that each sentence is a group of its own."""
        chosen = [*self.handy.items, *self.others.items]
        return [replace(sentence, number=number) for number, sentence in enumerate(chosen)]


def _is_handy(sentence: ReadySentence) -> bool:
    """Whether a sentence is pleasant to read: not too long, and made of words."""
    letters = sum(character.isalpha() or character.isspace() for character in sentence.text)
    is_text = letters >= MOSTLY_LETTERS * len(sentence.text)
    return is_text and SHORTEST <= len(sentence.ids) <= LONGEST


@dataclass(frozen=True)
class Looked:
    """What one sentence of the sample showed at one site.

    argmax: by layer, the keys `[heads, queries]`; target: the translation's tokens, if it has them
    """

    argmax: Mapping[int, Tensor]
    target: tuple[str, ...] | None


def best_examples(
    heads: Mapping[Head, HeadRoles],
    sample: Sequence[ReadySentence],
    counts: Mapping[str, SiteCounts],
    looked: Mapping[tuple[str, int], Looked],
    tokens: Sequence[str],
) -> dict[tuple[Head, str, str], Example]:
    """For every role of every head the sentence that shows it most often and most clearly.

    `counts` are those of the sample, one group per sentence; `looked[site, number]`; `tokens` are
    the texts of the source's token ids.
    """
    examples = {}
    for head, head_roles in heads.items():
        for role in head_roles.roles:
            number = _best_sentence(head, role.kind, role.name, counts[head.site], sample)
            if number is None:
                continue
            site, sentence, seen = counts[head.site], sample[number], looked[head.site, number]
            column = site.heads.heads.index(head)
            role_counts = site.roles[role.kind]
            name = role_counts.names.index(role.name)
            queries = len(sentence.ids) if seen.target is None else len(seen.target)
            row = column - site.heads.layers[head.layer].start
            examples[head, role.kind, role.name] = Example(
                sentence=sentence.text,
                tokens=tuple(tokens[id_] for id_ in sentence.ids),
                argmax=tuple(seen.argmax[head.layer][row, :queries].tolist()),
                hits=int(role_counts.hits[number, column, name]),
                instances=int(role_counts.totals[number, name]),
                confidence=round(float(_confidence(site, column)[number]), 4),
                target_tokens=seen.target,
                queries=tuple(role_counts.queries(sentence, name)),
            )
    return examples


def _best_sentence(
    head: Head, kind: str, name: str, counts: SiteCounts, sample: Sequence[ReadySentence]
) -> int | None:
    """The sentence with most hits among its instances, and the most confident head.

    As many hits as the baseline would have do not count where a sentence has more: they show
    nothing. (Which ones the head has found is not known here.)
    Counting one instance more keeps a sentence with a single hit from being the best one.
    """
    role_counts = counts.roles[kind]
    column, n = counts.heads.heads.index(head), role_counts.names.index(name)
    hits = role_counts.hits[:, column, n].double()
    clarity = _confidence(counts, column) / (role_counts.totals[:, n] + 1)
    baseline = role_counts.baseline_hits(sample, n)
    beyond = [max(0, int(count) - easy) for count, easy in zip(hits, baseline, strict=True)]

    def order(number: int) -> tuple[bool, float, float]:
        sure = float(clarity[number])
        return _is_handy(sample[number]), beyond[number] * sure, float(hits[number]) * sure

    showing = [number for number in range(len(sample)) if hits[number] > 0]
    return max(showing, key=order, default=None)


def _confidence(counts: SiteCounts, column: int) -> Tensor:
    """The confidence of one head in each sentence, `[sentences]`."""
    sums = counts.confidence.sums[:, column].double() / FIXED_POINT
    return sums / counts.confidence.queries.clamp(min=1)
