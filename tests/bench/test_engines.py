from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headcount.bench.engines import bench_ctranslate2, line_tokens
from headcount.cli import app
from headcount.run import Run

pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")


@pytest.fixture(scope="module")
def folders(
    make_run: Callable[..., Run], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A full run and one with two heads less."""
    root = tmp_path_factory.mktemp("bench")
    make_run(0).save(root / "full")
    make_run(0, ["enc.0.0", "cross.1.1"]).save(root / "pruned")
    return root / "full", root / "pruned"


def test_runs_and_precisions_side_by_side(folders: tuple[Path, Path], english: list[str]) -> None:
    found = bench_ctranslate2(folders, [*english[:4], ""], rounds=1, beam=2, singles=2)
    assert [(Path(each.run).name, each.precision) for each in found] == [
        ("full", "float32"), ("full", "int8"), ("pruned", "float32"), ("pruned", "int8"),
    ]  # fmt: skip
    assert [each.padded_heads for each in found] == [0, 0, 2, 2]
    assert found[1].file_bytes < found[0].file_bytes
    for each in found:
        assert set(each.timings) == {
            "greedy, batch 1", "greedy, batch 64", "beam 2, batch 1", "beam 2, batch 64",
        }  # fmt: skip
        assert all(timing.median > 0 for timing in each.timings.values())


def test_tokens_are_the_engines(make_run: Callable[..., Run], english: list[str]) -> None:
    run = make_run(0)
    tokens = line_tokens(run, ["", *english[:2]])
    assert len(tokens) == 2
    assert "".join(tokens[0]).replace("▁", " ").strip() == english[0]


def test_the_verb(
    folders: tuple[Path, Path], english: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headcount.bench.runs.peak_memory", lambda *_: (9, 5))
    (tmp_path / "src").write_text("\n".join(english[:3]))
    options = ["--src", f"{tmp_path}/src", "--rounds", "1", "--singles", "1", "--ctranslate2"]
    arguments = ["bench", *map(str, folders), *options]
    result = CliRunner().invoke(app, [*arguments, "--json", "--quiet"])
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert (len(found["runs"]), len(found["ctranslate2"])) == (2, 4)
    shown = CliRunner().invoke(app, [*arguments, "--quiet"])
    assert "CTranslate2, milliseconds per sentence" in shown.stdout
