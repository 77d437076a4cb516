"""A planted study that many tests look at, and its report, made once for all test processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock
from paper_like import plant_paper_like

from headcount.study.report import write_report


@pytest.fixture(scope="session")
def paper_like(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A study like the paper's with its report, figures and tables; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "paper-like"
    with FileLock(f"{folder}.lock"):
        if not (folder / "report.html").exists():
            plant_paper_like(folder)
            write_report(folder)
    return folder
