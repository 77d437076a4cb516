"""Errors that are for people: what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
import signal
from pathlib import Path

SHIPPED = {
    "demo": Path(__file__).parent / "demo_model",
    "demo-ru": Path(__file__).parent / "demo_model_ru",
}
"""The runs that come with the package, by what users call them."""


def _as_users_say(text: str) -> str:
    """A shipped run by its name, and its files as "heads.json of demo": there is no demo/."""
    for name, folder in reversed(SHIPPED.items()):  # one folder's name begins with another's
        text = re.sub(re.escape(str(folder)) + r"[/\\]([\w./\\-]*\w)", rf"\1 of {name}", text)
        text = text.replace(str(folder), name)
    return text


class UserError(Exception):
    """Bad input. The command line prints its message as one line and exits with code 2."""

    def __init__(self, problem: str, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(_as_users_say(f"{problem} {remedy}".strip()))


def stop_signals() -> list[int]:
    """Signals that ask a process to end, except those that it ignores (as under nohup)."""
    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


class Interrupted(KeyboardInterrupt):
    """Work that was told to stop and has saved its state; it exits with 128 + signal."""

    def __init__(self, number: int, message: str = "Interrupted.") -> None:
        self.number, self.message = number, message
        super().__init__(
            number, message
        )  # both arguments, so that it can be sent between processes

    def __str__(self) -> str:
        return self.message


class Notice(UserWarning):
    """Something that people should know but that does not stop the work."""

    def __init__(self, text: str) -> None:
        super().__init__(_as_users_say(text))
