"""Speed, memory and size of runs and exports, side by side.

The verb and its stage have the same name, so this package can be called: `headcount.bench(runs,
lines)` is `headcount.bench.runs.bench(runs, lines)`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headcount.bench.runs import Bench


class _Callable(ModuleType):
    """A package that is also a function; what it needs is imported at the call."""

    def __call__(self, *arguments: Any, **options: Any) -> list[Bench]:
        from headcount.bench.runs import bench

        return bench(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
