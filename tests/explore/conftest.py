"""Two tiny runs for the live page: a full one with a head table and roles, and a smaller one."""

from __future__ import annotations

import pytest

import headcount
from headcount.explore.answers import Answers
from headcount.heads import Head
from headcount.loaded.model import Model
from headcount.model.gating import remove_heads
from headcount.run import load_run

TEXT = "A big dog and a small cat see it ."
GONE = [Head("enc", 0, 1), Head("enc", 1, 0), Head("cross", 0, 2)]


@pytest.fixture(scope="session")
def models(run_folder, tmp_path_factory) -> dict[str, Model]:
    pytest.importorskip("starlette", reason="needs headcount[explore]")
    folder = tmp_path_factory.mktemp("explored")
    full = load_run(run_folder)
    full.folder = folder / "full"
    full.save()
    table = full.head_table()
    table.add("lrp", {head: 0.1 * (1 + head.index) for head in table.heads})
    table.save(full.analysis)
    small = load_run(run_folder)
    small.folder, small.model = folder / "small", remove_heads(small.model, GONE)
    small.save()
    return {name: headcount.load(folder / name, device="cpu") for name in ("full", "small")}


@pytest.fixture
def answers(models) -> Answers:
    return Answers(models, [TEXT, "The cat sees the dog ."])


@pytest.fixture(scope="session")
def twins(models) -> dict[str, Model]:
    """The same models once more, for tests that ask while the server works."""
    return {name: headcount.load(model.folder, device="cpu") for name, model in models.items()}
