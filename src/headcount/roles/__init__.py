"""What each head does (Sec. 5): positional, syntactic, rare words.

The verb and its stage have the same name, so this package can be called: `headcount.roles(run,
"dev.en")` is `headcount.roles.analysis.name_roles(run, "dev.en")`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.roles.result import Roles


class _Callable(ModuleType):
    """A package that is also a function; what it needs is imported at the call."""

    def __call__(self, *arguments: Any, **options: Any) -> Roles:
        from headcount.roles.analysis import name_roles

        return name_roles(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
