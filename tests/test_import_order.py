"""Imports run one way: a stage imports only from the stages before it, and nothing in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import headcount

PACKAGE = Path(headcount.__file__).parent
FOUNDATION = (
    "bootstrap", "config", "distribution", "errors", "files", "heads", "processes",
    "progress", "picture", "registry", "yaml_reading",
)  # fmt: skip
"""Modules of the package itself that import no stage."""
ORDER = (
    "foundation", "data", "model", "run", "translation", "scoring", "role", "training", "ranking",
    "interop", "bench", "pruning", "study", "loaded",
    "attribution", "explore", "cli", "__main__",
)  # fmt: skip
"""Stages and modules in an order in which each could be written without the later ones.

Roles come before training because training watches how far its heads have specialised; timing and
exports come before pruning because a sweep times its runs as `bench` does.
"""


def module_files() -> dict[str, Path]:
    """The file of every module, under its dotted name without `headcount.`; the package is ''."""
    names = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


FILES = module_files()


def short(module: str) -> str:
    """A module's name without `headcount.`."""
    return module.removeprefix("headcount.")


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of the package that are imported, in functions too, but not for type checkers only.

    What functions import counts as well: a circle that is hidden in a function is still a circle.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            modules = [n if short(n) in FILES else node.module or "" for n in inner]
        else:
            modules = []
        yield from (short(module) for module in modules if module.startswith("headcount."))
        yield from imported(node)


GRAPH = {
    name: set(imported(ast.parse(path.read_text(encoding="utf-8")))) - {name}
    for name, path in FILES.items()
}


def stage(module: str) -> str:
    """The stage of a module."""
    first = module.split(".")[0]
    return "foundation" if first in FOUNDATION else first


def test_the_order_names_everything_there_is() -> None:
    assert {stage(module) for module in FILES if module} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_stage_imports_only_from_those_before_it(name: str) -> None:
    allowed = set(ORDER[: ORDER.index(name) + 1])
    against = [
        f"{module} imports {other}"
        for module, others in GRAPH.items()
        if module and stage(module) == name
        for other in sorted(others)
        if stage(other) not in allowed
    ]
    assert not against


def test_there_is_no_circle() -> None:
    try:
        TopologicalSorter(GRAPH).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(reversed(error.args[1])))
