"""The runs that are timed: those of the tests of pruning and of exports."""

from interop.conftest import english, french, make_run, own_tokenizer
from pruning.conftest import baseline, corpus

__all__ = ["baseline", "corpus", "english", "french", "make_run", "own_tokenizer"]
