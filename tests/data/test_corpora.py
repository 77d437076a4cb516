"""Every corpus of the registry is complete; a new one is tested in tests/test_registries.py."""

from __future__ import annotations

from headcount.data.corpora import CORPORA
from headcount.data.pairs import parse_language_pair


def test_every_entry_is_complete() -> None:
    for corpus in CORPORA.values():
        assert corpus.help
        assert corpus.licence
        assert all(parse_language_pair(pair) for pair in corpus.language_pairs)
