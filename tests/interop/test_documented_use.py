"""The programs of docs/interop.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headcount.interop.checking import EXTRAS
from headcount.interop.export import export
from headcount.run import Run

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"


@pytest.mark.parametrize("to", ["ctranslate2", "onnx"])
def test_programs_of_the_page(
    marian_run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    to: str,
) -> None:
    for package in EXTRAS[to]:
        pytest.importorskip(package, reason=f"needs headcount[{to}]")
    section = PAGE.read_text(encoding="utf-8").split(f"### {to}\n")[1].split("\n#")[0]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.S)
    export(marian_run, to, tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    exec(compile(program, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.startswith("[")
