"""How long-running work reports its progress: one protocol for every stage."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how much of it is done, and of how much (None: not known)."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Ignore progress."""
