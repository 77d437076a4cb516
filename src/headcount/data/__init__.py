"""Corpora, BPE, token shards on disk and length-bucketed batches.

The verb and its stage have the same name, so this package can be called: `headcount.data("builtin",
"DIR")` is `headcount.data.mix.make_corpus("builtin", "DIR")`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.data.corpus_folder import Corpus


class _Callable(ModuleType):
    """A package that is also a function; what it needs is imported at the call."""

    def __call__(self, *arguments: Any, **options: Any) -> Corpus:
        from headcount.data.mix import make_corpus

        return make_corpus(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
