"""What every verb refuses: absurdly large numbers, and empty arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from headcount.errors import UserError

LARGEST = 2**31 - 1
"""The largest whole number on the command line: beyond it libraries overflow."""


def check_arguments(words: Sequence[str]) -> None:
    """Stop if a word of the command line is empty, as after an unset shell variable."""
    for before, word in zip(("headcount", *words), words, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=")):
            raise UserError(f"The argument after {before} is empty.", "Give it a value.")


def check_values(options: Mapping[str, Any]) -> None:
    """Stop if a number is too large for any library, or not finite."""
    for name, value in options.items():
        option = f"--{name.strip('_').replace('_', '-')}"
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{option} {value} is too large.", f"At most {LARGEST}.")
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{option} {value} is not a finite number.", "Give one that is.")
        if name == "seed" and isinstance(value, int) and value < 0:
            raise UserError(f"{option} {value} is negative.", "Seeds are 0 or more.")
