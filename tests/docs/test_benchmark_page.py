"""benchmarks/RESULTS.md shows what was measured, no more and no less."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_page_is_made_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    render = importlib.import_module("render")
    page = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    assert page == render.render(render._load())
