"""`builtin`: English-French pairs from a small grammar, with gold trees; it needs no network."""

from __future__ import annotations

from collections.abc import Iterator

from headcount.data.builtin_grammar import Grammar
from headcount.data.builtin_phrases import sentence_of
from headcount.data.conllu import Sentence, format_sentence
from headcount.data.pairs import Pair, Source
from headcount.data.splitting import held_out_size
from headcount.progress import Progress

PAIRS = 4000
SHORTEST, LONGEST = 4, 22  # words and punctuation


def builtin_source(pairs: int | None = None, seed: int = 0) -> Source:
    """The built-in corpus: 4000 pairs in all, or as many as `pairs` training pairs need."""
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
        name="builtin",
        description="Made by headcount's own small grammar, with gold dependency trees",
        licence="Apache-2.0",
        attribution="headcount",
        languages=("en", "fr"),
        inputs={"grammar": "1", "sentences": str(total)},
        read=read,
    )


def generate(count: int, seed: int = 0) -> Iterator[tuple[Sentence, str]]:
    """English sentences with their trees and French translations; no English sentence twice."""
    grammar = Grammar(seed)
    seen: set[str] = set()
    while len(seen) < count:
        root, translation = grammar.sentence()
        sentence = sentence_of(root)
        if sentence.text not in seen and SHORTEST <= len(sentence.words) <= LONGEST:
            seen.add(sentence.text)
            yield sentence, translation
