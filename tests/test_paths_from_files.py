"""Names that are read from files never lead out of their folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import headcount
from headcount.errors import UserError
from headcount.files import inside

PACKAGE = Path(headcount.__file__).parent


@pytest.mark.parametrize("name", ["a", "runs/en-fr", "a.b", "a..b", "ä b", "-x"])
def test_names_below_a_folder(tmp_path: Path, name: str) -> None:
    assert inside(tmp_path, name, ".json") == tmp_path / f"{name}.json"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../precious",
        "a/../../b",
        "/etc/passwd",
        "~root/x",
        "a\\..\\b",
        "C:x",
        "a\0b",
    ],
)
def test_names_that_lead_elsewhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="does not name anything inside"):
        inside(tmp_path, name)


# Where a path is put together from something that is not a constant, and why that is safe.
REVIEWED = {
    "attribution.py": "names of our own files",
    "bench": "names of our own temporary files",
    "cli": "paths that the user typed",
    "data/builtin_": "names of our own files",
    "data": "checked languages, splits, and the last parts of addresses",
    "files.py": "the function that checks, and names of partial files",
    "interop": "names of our own files",
    "pruning/sweep.py": "names made from numbers and registered methods",
    "role": "a digest, and names of our own files",
    "study/figures": "names of our own figures",
    "study/plan.py": "names of a recipe, which `Name` checks",
    "study/report": "names of our own figures",
    "study/stages.py": "names of stages with slashes replaced",
    "study/tables.py": "names of our own tables",
    "training/checkpoints.py": "numbers of updates",
    "training/preparation.py": "digests and names of known corpora",
}


def test_there_is_no_other_way_from_a_name_to_a_path() -> None:
    """Every `folder / f"..."` and `folder / str(...)` is in a file that has been reviewed."""
    bad = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        if any(where.startswith(reviewed) for reviewed in REVIEWED):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)):
                continue
            if _is_a_name(node):
                bad.append(f"{where}:{node.lineno}")
    assert not bad, "paths made of names: use headcount.files.inside"


def _is_a_name(division: ast.BinOp) -> bool:
    """Whether something is divided by an f-string, `str(...)` or, as a path is, by `x["name"]`."""
    right = division.right
    if isinstance(right, ast.Call):
        return getattr(right.func, "id", "") == "str"
    if isinstance(right, ast.Subscript) and isinstance(right.slice, ast.Constant):
        return isinstance(right.slice.value, str) and not isinstance(division.left, ast.Subscript)
    return isinstance(right, ast.JoinedStr)
