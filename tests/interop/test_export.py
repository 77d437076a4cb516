from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headcount
from headcount.errors import UserError
from headcount.interop import checking
from headcount.interop.checking import require_extra
from headcount.interop.export import EXPORTS, export
from headcount.run import Run


@pytest.mark.parametrize(("to", "package"), [("ctranslate2", "ctranslate2"), ("onnx", "onnx")])
def test_a_failed_comparison_leaves_nothing_behind(
    make_run: Callable[..., Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    package: str,
) -> None:
    """What is written is not the run's: one of its weights changes in between."""
    pytest.importorskip(package, reason=f"needs headcount[{to}]")
    run = make_run(0)
    name = {"ctranslate2": "write_ctranslate2", "onnx": "write_onnx"}[to]
    module = f"headcount.interop.{to}_export"
    original = getattr(__import__(module, fromlist=[name]), name)

    def write_and_change(*given: Any) -> None:
        original(*given)
        run.model.output_weight.data[7] += 0.5

    monkeypatch.setattr(f"{module}.{name}", write_and_change)
    with pytest.raises(UserError, match="Nothing was written"):
        export(run, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_bad_wishes(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(0)
    with pytest.raises(UserError, match="no format"):
        export(run, "tensorflow", tmp_path / "out")
    pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")
    with pytest.raises(UserError, match="Unknown precision"):
        export(run, "ctranslate2", tmp_path / "out", precision="int3")
    pytest.importorskip("onnxruntime", reason="needs headcount[onnx]")
    with pytest.raises(UserError, match="float32 only"):
        export(run, "onnx", tmp_path / "out", precision="int8")
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        export(run, "onnx", tmp_path / "out")
    assert (tmp_path / "out").read_text() == "mine"


@pytest.mark.parametrize("extra", sorted({entry.extra for entry in EXPORTS.values()}))
def test_a_missing_package_is_one_line(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checking.EXTRAS, extra, ("no_such_package",))
    with pytest.raises(UserError, match=rf"pip install 'headcount\[{extra}\]'"):
        require_extra(extra)


@pytest.mark.parametrize("to", EXPORTS)
def test_files_are_as_readable_as_others(
    transformers: Any, marian_run: Run, tmp_path: Path, to: str
) -> None:
    for package in checking.EXTRAS[EXPORTS[to].extra]:
        pytest.importorskip(package, reason=f"needs headcount[{to}]")
    exported = headcount.export(marian_run, to, tmp_path / "out")
    (tmp_path / "plain").touch()
    usual = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    files = list((tmp_path / "out").iterdir())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {usual}
    assert exported.bytes == sum(path.stat().st_size for path in files)
