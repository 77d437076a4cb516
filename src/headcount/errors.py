"""Errors that are for people: what is wrong, where, and what to do about it."""

from __future__ import annotations


class UserError(Exception):
    """Bad input. The command line prints its message as one line and exits with code 2."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem} {remedy}".strip())


class Notice(UserWarning):
    """Something that people should know but that does not stop the work."""
