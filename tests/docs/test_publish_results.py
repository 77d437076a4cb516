"""What tools/publish_results.py copies, and what it refuses."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headcount.files import write_json
from headcount.role.head_roles import Example
from headcount.role.result import Roles
from headcount.study.claims import check
from headcount.study.results import load_results

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "study"))
from paper_like import plant_paper_like  # noqa: E402


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("publish", ROOT / "tools" / "publish_results.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    for name in (
        "figures/fig7-bleu.png", "figures/fig7-bleu.pdf", "tables/models.md", "scores/a.json",
        "stages/a.json", "stages/a.log", "runs/a/analysis/head-table.csv",
        "runs/a/model.safetensors",
        "claims.json",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"this is {name}")
    write_json(folder / "explorer" / "a.json", {"sentences": [{"text": "A sentence of ours."}]})
    return folder


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    (folder / "tables").mkdir(parents=True)
    (folder / "tables" / "old.md").write_text("of an earlier study")
    (folder / "sentences.en").write_text("A sentence of ours.\n")
    return folder


def test_no_weights_no_logs_nothing_old(tool: ModuleType, study: Path, out: Path) -> None:
    tool.publish(study, out, out / "sentences.en")
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert found == {
        "figures/fig7-bleu.png", "tables/models.md", "scores/a.json", "stages/a.json",
        "runs/a/analysis/head-table.csv", "claims.json", "sentences.en",
    }  # fmt: skip


def test_a_published_study_gives_the_same_verdicts(tool: ModuleType, tmp_path: Path) -> None:
    """Everything that a claim needs is among the published files, and no sentence of a corpus."""
    study, out = plant_paper_like(tmp_path / "study", settings=1), tmp_path / "out"
    shutil.rmtree(study / "explorer")
    path = study / "runs" / "en-ru-subs-full" / "analysis" / "roles.json"
    roles = Roles.load(path)
    head = next(head for head, found in roles.heads.items() if found.roles)
    role = roles.heads[head].roles[0]
    example = Example("Somebody else's.", ("▁a",), (0,), 1, 1, 0.9)
    write_json(path, roles.with_examples({(head, role.kind, role.name): example}).to_json())
    sentences = tmp_path / "sentences.en"
    sentences.write_text("A sentence of ours.\n")
    tool.publish(study, out, sentences)
    verdicts = [verdict.to_json() for verdict in check(load_results(study))]
    assert [verdict.to_json() for verdict in check(load_results(out))] == verdicts
    assert {verdict["verdict"] for verdict in verdicts} >= {"holds", "does not hold", "undecided"}
    published = "".join(path.read_text() for path in out.rglob("*.json"))
    assert "Somebody else's." not in published


def test_files_of_this_machine_have_their_names_only(tool: ModuleType) -> None:
    text = 'folder: /home/me/data/tatoeba\nname: a/b\n{"run": "/tmp/x y/full", "ratio": "1 / 2"}\n'
    expected = 'folder: tatoeba\nname: a/b\n{"run": "full", "ratio": "1 / 2"}\n'
    assert tool.without_folders(text) == expected


def test_sentences_of_a_corpus_are_refused(tool: ModuleType, study: Path, out: Path) -> None:
    write_json(study / "explorer" / "b.json", {"sentences": [{"text": "Somebody else's."}]})
    with pytest.raises(SystemExit, match="1 sentences that are not in"):
        tool.publish(study, out, out / "sentences.en")
    assert (out / "tables" / "old.md").exists()


def test_a_part_stands_beside_the_rest(tool: ModuleType, study: Path, out: Path) -> None:
    tool.publish(study, out / "part", out / "sentences.en")
    assert (out / "part" / "tables" / "models.md").is_file()
    assert (out / "tables" / "old.md").is_file()


def test_tables_of_a_page(tool: ModuleType, tmp_path: Path) -> None:
    for folder, text in (("tables", "| new |\n"), ("part/tables", "| other |\n")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "models.md").write_text(text)
    page = "Before.\n<!-- models -->\n| {} |\n<!-- /models -->\nAfter.\n"
    page += "<!-- part/models -->\n| {} |\n<!-- /part/models -->\n"
    assert tool.with_tables(page.format("old", "old"), tmp_path) == page.format("new", "other")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("results*.md")), ids=lambda p: p.name)
def test_the_page_shows_what_is_published(tool: ModuleType, page: Path) -> None:
    results = ROOT / "results"
    text = page.read_text(encoding="utf-8")
    assert "<!-- " in text
    assert tool.with_tables(text, results) == text
