"""Pages say what is there: tables that are generated, files and links that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from headcount.config import Config
from headcount.study.claims import CLAIMS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recipe_tables_are_those_of_the_models() -> None:
    reference = tool("recipe_reference")
    reference.check_all_documented()
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page == reference.written(page), "run `python tools/recipe_reference.py --write`"


def test_recipe_tables_have_every_key_once() -> None:
    text = tool("recipe_reference").reference("training")
    keys = re.findall(r"^\| `(\w+)` \|", text, re.M)
    expected = [
        key
        for section in Config.model_fields.values()
        if hasattr(section.annotation, "model_fields")
        for key in section.annotation.model_fields
    ]
    assert sorted(keys) == sorted(expected)


def test_a_key_without_a_meaning_is_refused() -> None:
    from headcount.config import Section

    class Bare(Section):
        speed: int = 1

    reference = tool("recipe_reference")
    reference.SECTIONS["training"] = (Bare,)
    reference.NAMES[Bare] = "bare"
    with pytest.raises(ValueError, match=r"Bare\.speed has no meaning"):
        reference.reference("training")


def test_claims_page_has_every_claim() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    expected = [f"| {c.statement} | {c.section} | {c.criterion} |" for c in CLAIMS]
    assert rows == expected


def test_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    missing = [
        p.name for p in ROOT.glob("docs/*.md") if p.name != "README.md" and p.name not in index
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.M)
            anchors = [re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings]
            assert heading in anchors, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_exist(page: Path) -> None:
    """Paths in backticks such as `role/counting.py` or `tests/docs/test_pages.py`."""
    package = ROOT / "src" / "headcount"
    for name in re.findall(r"`((?:[\w\-]+/)+[\w\-]+\.(?:py|yaml|html|md|sh))`", page.read_text()):
        places = (ROOT / name, package / name, page.parent / name)
        assert any(path.exists() for path in places), name
