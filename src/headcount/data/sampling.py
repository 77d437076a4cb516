"""A sample spread evenly over the data: corpora are often sorted by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


def spread_indices(total: int, limit: int) -> list[int]:
    """`limit` of the numbers below `total`, evenly spread; all where there are no more."""
    if limit >= total:
        return list(range(total))
    return [number * total // limit for number in range(limit)]


def spread(items: Sequence[T], limit: int) -> list[T]:
    """`limit` of the items, evenly spread; all where there are no more."""
    return [items[place] for place in spread_indices(len(items), limit)]


def spread_stream(items: Iterable[T], limit: int, total: int) -> Iterator[T]:
    """The same `limit` of `total` items of a stream, without holding them."""
    chosen = iter(spread_indices(total, limit))
    following = next(chosen, None)
    for number, item in enumerate(items):
        if number == following:
            following = next(chosen, None)
            yield item
