"""Heads as people write them: one, several, or a pattern."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from headcount.errors import UserError
from headcount.heads import Head
from headcount.registry import name_list

Heads = str | Head | Iterable[str | Head]


def find_heads(wanted: Heads, heads: Sequence[Head]) -> list[Head]:
    """The heads of a model that are meant.

    A head is written `enc.4.1`; several as a list or with commas; `enc.4.*` or `enc.4` is a whole
    layer, `cross` a whole site.
    """
    if isinstance(wanted, str | Head):
        wanted = [wanted]
    chosen: list[Head] = []
    for item in wanted:
        for name in [str(item)] if isinstance(item, Head) else name_list(item):
            chosen += _matching(name, heads)
    return list(dict.fromkeys(chosen))


def _matching(name: str, heads: Sequence[Head]) -> list[Head]:
    pattern = name.split(".")
    pattern += ["*"] * (3 - len(pattern))
    if len(pattern) == 3:
        matching = [head for head in heads if all(map(fnmatchcase, str(head).split("."), pattern))]
        if matching:
            return matching
    near = difflib.get_close_matches(name, [str(head) for head in heads], n=1)
    hint = f"Did you mean {near[0]}?" if near else "Write it as site.layer.index: enc.0.3."
    raise UserError(f"The model has no head {name}.", hint)
