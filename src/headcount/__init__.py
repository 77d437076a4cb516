"""headcount: which attention heads of a Transformer matter, what they do, and pruning the rest.

Every verb of the command line is a function here, with the same name and the same defaults:

    import headcount

    model = headcount.load("demo")
    model.translate("She reads the letter.", off=["enc.4.1"])
    headcount.rank(model, "test.en", "test.fr").plot()
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # for editors and type checkers; at run time `_FUNCTIONS` says the same
    from headcount.attribution import attribute as attribute
    from headcount.bench.runs import bench as bench
    from headcount.data.mix import make_corpus as data  # noqa: F401
    from headcount.explore.explore import explore as explore
    from headcount.interop.export import export as export
    from headcount.interop.importing import import_run as import_  # noqa: F401
    from headcount.interop.importing import import_run as import_run
    from headcount.loaded.load import load as load
    from headcount.pruning.prune import prune as prune
    from headcount.pruning.sweep import prune_sweep as prune_sweep
    from headcount.ranking.rank import rank as rank
    from headcount.role.analysis import roles as roles
    from headcount.run import load_run as load_run
    from headcount.scoring import score as score
    from headcount.study.demo import demo as demo
    from headcount.study.demo import study as study
    from headcount.study.report import report as report
    from headcount.training.train import train as train
    from headcount.translation import translate as translate

# Name -> the module and the function behind it. They are imported when first used, so that
# `import headcount` costs nothing. `import` is a keyword in Python, so the function is `import_`.
_FUNCTIONS = {
    "attribute": "headcount.attribution:attribute",
    "bench": "headcount.bench.runs:bench",
    "data": "headcount.data.mix:make_corpus",
    "demo": "headcount.study.demo:demo",
    "explore": "headcount.explore.explore:explore",
    "export": "headcount.interop.export:export",
    "import_": "headcount.interop.importing:import_run",
    "import_run": "headcount.interop.importing:import_run",
    "load": "headcount.loaded.load:load",
    "load_run": "headcount.run:load_run",
    "prune": "headcount.pruning.prune:prune",
    "prune_sweep": "headcount.pruning.sweep:prune_sweep",
    "rank": "headcount.ranking.rank:rank",
    "report": "headcount.study.report:report",
    "roles": "headcount.role.analysis:roles",
    "score": "headcount.scoring:score",
    "study": "headcount.study.demo:study",
    "train": "headcount.training.train:train",
    "translate": "headcount.translation:translate",
}


class _Function:
    """A function of the package, imported when it is asked for.

    Some verbs have the name of their stage (`data`, `study`). Importing anything from such a stage
    puts the stage's package under that name; a descriptor with `__set__` takes precedence over it.
    The function shares the package's attributes, so that `headcount.data.tokenizer` still works.
    """

    def __init__(self, name: str, where: str) -> None:
        self.name, (self.module, self.function) = name, where.split(":")

    def __get__(self, package: ModuleType, owner: type) -> Any:
        function = getattr(import_module(self.module), self.function)
        stage = sys.modules.get(f"headcount.{self.name}")
        if stage is not None:
            function.__dict__ = stage.__dict__
        return function

    def __set__(self, package: ModuleType, value: object) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"headcount.{self.name} cannot be replaced")


class _Package(ModuleType):
    """The package itself, with its functions."""


for _name, _where in _FUNCTIONS.items():
    setattr(_Package, _name, _Function(_name, _where))
sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *_FUNCTIONS})
