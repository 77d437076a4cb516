"""The verb `bench`: what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headcount.bench.runs import removed
from headcount.cli import app
from headcount.model.gating import remove_heads
from headcount.run import load_run


@pytest.mark.parametrize(
    ("sites", "encoding"),
    [
        (("enc_layers",), "100.0% removed, none left"),
        (("enc", "enc_ff"), "100.0% removed, none left"),
        (("dec", "cross"), "0.0% removed 1.00x"),
    ],
)
def test_ceilings(
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sites: tuple[str, ...],
    encoding: str,
) -> None:
    """Also of a run that has nothing left in its encoder."""
    monkeypatch.setattr("headcount.bench.runs.peak_memory", lambda *_: (9, 5))
    monkeypatch.setenv("COLUMNS", "300")
    run = load_run(baseline)
    run.model = remove_heads(run.model, run.model.heads.heads(sites))
    run.save(tmp_path / "small")
    arguments = ["bench", baseline, tmp_path / "small", "--src", corpus / "test.en", "--quiet"]
    arguments += ["--rounds", 1, "--sentences", 3, "--singles", 1]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None, result.exception
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert f"ceiling: encode 0.0% removed 1.00x {encoding} ceiling: translate" in shown


def test_a_first_run_without_an_encoder_has_nothing_to_lose() -> None:
    assert removed(0, of=0) == 0
    assert removed(0, of=8) == 1
    assert removed(6, of=8) == 0.25
