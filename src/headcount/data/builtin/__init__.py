"""`builtin`: English-French pairs from a small grammar, with gold trees; it needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headcount.data.pairs import KnownCorpus, Pair, Source
from headcount.progress import Progress

if TYPE_CHECKING:
    from headcount.data.conllu import Sentence

PAIRS = 4000
SHORTEST, LONGEST = 4, 22  # words and punctuation


def builtin_source(pairs: int | None = None, seed: int = 0) -> Source:
    """The built-in corpus: 4000 pairs in all, or as many as `pairs` training pairs need."""
    from headcount.data.cleaning import held_out_size
    from headcount.data.conllu import format_sentence

    total = PAIRS
    if pairs is not None:
        while total - 2 * held_out_size(total) < pairs:
            total += max(1, (pairs - total + 2 * held_out_size(total)))

    def read(progress: Progress) -> Iterator[Pair]:
        for number, (sentence, translation) in enumerate(generate(total, seed), start=1):
            if number % 500 == 0:
                progress("Making sentences", number, total)
            yield Pair(sentence.text, translation, tree=format_sentence(sentence))

    return Source(
        name=BUILTIN.name,
        description="Made by headcount's own small grammar, with gold dependency trees",
        licence=BUILTIN.licence,
        attribution="headcount",
        languages=("en", "fr"),
        inputs={"grammar": "1", "sentences": str(total)},
        read=read,
    )


def generate(count: int, seed: int = 0) -> Iterator[tuple[Sentence, str]]:
    """English sentences with their trees and French translations; no English sentence twice."""
    # Imported here, since the grammar reads its lexicon, and `--help` need not wait for that.
    from headcount.data.builtin.grammar import Grammar
    from headcount.data.builtin.phrases import sentence_of

    grammar = Grammar(seed)
    seen: set[str] = set()
    while len(seen) < count:
        root, translation = grammar.sentence()
        sentence = sentence_of(root)
        if sentence.text not in seen and SHORTEST <= len(sentence.words) <= LONGEST:
            seen.add(sentence.text)
            yield sentence, translation


BUILTIN = KnownCorpus(
    name="builtin",
    help="4000 or more generated pairs with gold trees; needs no network",
    licence="Apache-2.0",
    open=lambda request: builtin_source(request.pairs, request.seed),
    language_pairs=("en-fr",),
)
