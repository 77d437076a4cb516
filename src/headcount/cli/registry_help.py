"""Help texts that list what is registered, looked up only when help is asked for.

`{methods}` in the help of a verb, an argument or an option stands for the names and help of that
registry. Importing the registries takes seconds (they need torch), so it must not happen when a
verb is merely called.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperOption

REGISTRIES = {
    "corpora": ("headcount.data.corpora", "corpora_help"),
    "exports": ("headcount.interop.export", "EXPORTS"),
    "families": ("headcount.interop.families", "FAMILIES"),
    "measures": ("headcount.ranking.measures", "MEASURES"),
    "methods": ("headcount.pruning.methods", "METHODS"),
    "rules": ("headcount.ranking.lrp.rules", "RULES"),
    "roles": ("headcount.role.registry", "ROLES"),
}


def filled(text: str) -> str:
    """A help text with the names of registries replaced by what they hold."""

    def listed(match: re.Match[str]) -> str:
        module, name = REGISTRIES[match[1]]
        listing = getattr(import_module(module), name)
        return str(listing() if callable(listing) else listing.help())

    return re.sub(rf"\{{({'|'.join(REGISTRIES)})\}}", listed, text)


class Verb(TyperCommand):
    """A command whose help lists what is registered."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Fill in the registries before anything is printed, as they are now."""
        kinds = TyperArgument | TyperOption
        parameters = [p for p in self.params if isinstance(p, kinds) and p.help]
        texts = self.help, [p.help for p in parameters]
        self.help = filled(self.help or "")
        for parameter in parameters:
            parameter.help = filled(parameter.help or "")
        super().format_help(ctx, formatter)
        self.help = texts[0]
        for parameter, text in zip(parameters, texts[1], strict=True):
            parameter.help = text
