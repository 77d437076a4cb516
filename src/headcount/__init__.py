"""headcount: which attention heads of a Transformer matter, what they do, and pruning the rest."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The verbs of the command line as functions, and the modules that hold them. They are imported
# when first used (PEP 562), so that `import headcount` costs nothing.
_VERBS = {
    "export": "headcount.interop.export",
    "import_run": "headcount.interop.marian_import",
    "prune": "headcount.pruning.prune",
    "prune_sweep": "headcount.pruning.sweep",
    "rank": "headcount.ranking.rank",
    "report": "headcount.study.report",
    "load_run": "headcount.run",
    "roles": "headcount.role.analysis",
    "score": "headcount.scoring",
    "train": "headcount.training.train",
    "translate": "headcount.translation",
}
# Verbs that have the name of their stage: the package itself can be called.
_STAGES = ("bench",)


def __getattr__(name: str) -> Any:
    if name in _VERBS:
        return getattr(import_module(_VERBS[name]), name)
    if name in _STAGES:
        return import_module(f"headcount.{name}")
    raise AttributeError(f"module 'headcount' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_VERBS, *_STAGES})
