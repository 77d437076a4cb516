"""The gallery is what its tool writes; every picture is there, and every line draws."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from headcount.picture import Picture
from headcount.run import resolve_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    return importlib.import_module("make_gallery")


def test_the_page_is_up_to_date(tool):
    assert (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8") == tool.page()


def test_every_picture_is_there(tool):
    own = [ROOT / "docs" / "gallery" / f"{figure.name}.png" for figure in tool.OWN]
    published = [ROOT / "docs" / figure.name for figure in tool.of_studies() if figure.name]
    assert len(published) >= 10
    assert [path for path in (*own, *published) if not path.is_file()] == []


@pytest.mark.slow
def test_every_line_draws(tool):
    if not (resolve_run("demo") / "model.safetensors").is_file():
        pytest.skip("this installation has no demo model")
    for figure, picture in tool.draw_own():
        assert isinstance(picture, Picture), figure.line
        assert picture._repr_png_().startswith(b"\x89PNG")
