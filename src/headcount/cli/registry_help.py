"""Help texts that list what is registered, looked up only when help is asked for.

`{methods}` in an option's help stands for the names and help of that registry. Importing the
registries takes seconds (they need torch), so it must not happen when a verb is merely called.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperOption

REGISTRIES = {
    "measures": ("headcount.ranking.measures", "MEASURES"),
    "methods": ("headcount.pruning.methods", "METHODS"),
    "rules": ("headcount.ranking.lrp.rules", "RULES"),
}


def filled(text: str) -> str:
    """A help text with the names of registries replaced by what they hold."""

    def listed(match: re.Match[str]) -> str:
        module, name = REGISTRIES[match[1]]
        return str(getattr(import_module(module), name).help())

    return re.sub(rf"\{{({'|'.join(REGISTRIES)})\}}", listed, text)


class Verb(TyperCommand):
    """A command whose help lists what is registered."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the registries before anything is printed."""
        for parameter in self.params:
            if isinstance(parameter, TyperOption) and parameter.help:
                parameter.help = filled(parameter.help)
        super().format_help(ctx, formatter)
