"""A few of many, evenly spread: corpora are often sorted by length, the first lines no sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def spread_places(total: int, limit: int) -> list[int]:
    """`limit` of the numbers below `total`, evenly spread; all where there are no more."""
    if limit >= total:
        return list(range(total))
    return [number * total // limit for number in range(limit)]


def spread(items: Sequence[T], limit: int) -> list[T]:
    """`limit` of the items, evenly spread; all where there are no more."""
    return [items[place] for place in spread_places(len(items), limit)]


def spread_stream(items: Iterable[T], limit: int, total: int) -> Iterator[T]:
    """The same `limit` of `total` items of a stream, without holding them."""
    chosen = iter(spread_places(total, limit))
    following = next(chosen, None)
    for number, item in enumerate(items):
        if number == following:
            following = next(chosen, None)
            yield item
