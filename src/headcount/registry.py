"""One registry for each kind of thing that people add: measures, rules, roles, methods, corpora.

An entry is a small frozen dataclass with a `name` and one line of `help`; the rest of it is what
its kind needs. Everything that lists names (help texts, recipes, plans, figures, docs) reads the
registry, so a new thing is one file and its line there.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, TypeVar

from headcount.errors import UserError


class Entry(Protocol):
    """What every entry has."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...


T = TypeVar("T", bound=Entry)


class Registry(Mapping[str, T]):
    """Entries by name, in the order in which they were added."""

    def __init__(self, kind: str, entries: Iterable[T] = ()) -> None:
        """`kind` is the word for one entry, for messages: "measure"."""
        self.kind = kind
        self._entries: dict[str, T] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: T) -> T:
        """Add an entry; a name that is taken is a programming error."""
        if entry.name in self._entries:
            raise ValueError(f"there is already a {self.kind} called '{entry.name}'")
        self._entries[entry.name] = entry
        return entry

    @contextmanager
    def adding(self, entry: T) -> Iterator[T]:
        """Add an entry for the length of a `with` block, as tests do."""
        self.add(entry)
        try:
            yield entry
        finally:
            del self._entries[entry.name]

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: str) -> T:
        """The entry of a name that a user typed; an unknown one gets the nearest known name."""
        if name in self:
            return self[name]
        near = difflib.get_close_matches(str(name), self, n=1)
        hint = f"Did you mean '{near[0]}'? " if near else ""
        raise UserError(
            f"There is no {self.kind} '{name}'.", f"{hint}Choose among {', '.join(self)}."
        )

    def help(self) -> str:
        """All names with their lines of help, for `--help`."""
        return "; ".join(f"{name}: {entry.help}" for name, entry in self.items())


def name_list(value: str | Iterable[str]) -> tuple[str, ...]:
    """Names as users give them: a list, or one string with commas (`"enc,dec"`)."""
    names = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
