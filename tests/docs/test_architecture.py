"""docs/architecture.md names every folder and the shared modules, and nothing that is not there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headcount"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FOLDERS = sorted(
    f"{path.parent.relative_to(PACKAGE)}/"
    for path in PACKAGE.rglob("__init__.py")
    if path.parent != PACKAGE
)


def drawing() -> ModuleType:
    path = ROOT / "tools" / "draw_architecture.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_its_row(folder: str) -> None:
    assert re.search(rf"^\| `{folder}` \|", PAGE, re.M)


def test_every_folder_that_is_named_exists() -> None:
    assert sorted(re.findall(r"^\| `([\w/]+/)` \|", PAGE, re.M)) == FOLDERS


@pytest.mark.parametrize("folder", [name for name in FOLDERS if name.count("/") == 1])
def test_the_page_tells_of_modules_that_exist(folder: str) -> None:
    named = set(re.findall(rf"`({folder}[\w/]+\.py)`", PAGE))
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_the_stages_of_a_sentence_name_their_modules() -> None:
    """A stage that a sentence passes through is told by its modules, not only by its folder."""
    for folder in ("data", "model", "training", "ranking", "role", "pruning", "study"):
        assert len(set(re.findall(rf"`({folder}/[\w/]+\.py)`", PAGE))) >= 3, folder


def test_modules_that_stages_share_are_all_named() -> None:
    shared = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    assert set(re.findall(r"`(\w+\.py)`", PAGE)) == shared


def test_the_picture_names_modules_that_exist_and_is_up_to_date() -> None:
    picture = (ROOT / "docs" / "architecture.svg").read_text(encoding="utf-8")
    names = drawing().modules()
    assert [name for name in names if not (PACKAGE / f"{name}.py").is_file()] == []
    drawn = re.findall(r">([a-z]+/[a-z_/]+)</text>", picture)
    assert drawn == names, "run `python tools/draw_architecture.py`"
    assert all(f"`{name}.py`" in PAGE for name in names)
