"""The tutorial runs as it stands, and shows what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from headcount.run import resolve_run

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"


def kinds(outputs):
    return [next(iter(output.get("data", {"text": None}))) for output in outputs]


@pytest.mark.slow
def test_the_tutorial_runs(tmp_path, monkeypatch):
    """Every cell gives the kinds of outputs that are stored, and the same heads and pictures."""
    if not (resolve_run("demo") / "model.safetensors").is_file():
        pytest.skip("this installation has no demo model")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from run_notebook import run_cells

    monkeypatch.chdir(tmp_path)
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    count = 0
    for cell, outputs in run_cells(notebook):
        count += 1
        assert outputs, "a cell that shows nothing"
        assert kinds(outputs) == kinds(cell["outputs"]), "".join(cell["source"])
    assert count == 10
    assert (tmp_path / "pruned" / "model.safetensors").is_file()
    sys.modules.pop("run_notebook", None)


def test_what_is_stored_came_from_a_whole_run():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    pictures = [k for cell in code for k in kinds(cell["outputs"]) if k == "image/png"]
    assert len(pictures) >= 4
