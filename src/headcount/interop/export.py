"""`headcount export`: a run in the format of another engine, checked before it is there.

Each export is written into a temporary folder, loaded from there by the engine itself and compared
with the run; only then it gets its name. A failed comparison leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headcount.errors import UserError
from headcount.files import atomic_folder
from headcount.interop.checking import make_sample, refuse_existing
from headcount.interop.extras import require_extra
from headcount.progress import Progress, silent
from headcount.run import Run, open_run

FORMATS = ("ctranslate2", "marian", "onnx")


@dataclass
class Exported:
    """What was written, and how it compared.

    `difference` is the largest difference of logits (marian, onnx) or of log-probabilities
    (ctranslate2; the mean one where weights are rounded) between the export and the run.
    """

    folder: str
    format: str
    precision: str
    difference: float = 0.0
    padded_heads: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def export(
    run: Run | Path | str,
    to: str,
    out: Path | str,
    *,
    precision: str = "float32",
    lines: Sequence[str] = (),
    progress: Progress = silent,
) -> Exported:
    """Write a run (or the one in that folder) for another engine; `headcount.export`.

    `to` is one of FORMATS. Random sentences are compared; `lines` are compared as well.
    """
    if to not in FORMATS:
        raise UserError(f"Unknown format '{to}'.", f"Choose among {', '.join(FORMATS)}.")
    require_extra(to)
    _check_precision(to, precision)
    out = Path(out)
    refuse_existing(out)
    run = open_run(run)
    exporter = {"ctranslate2": _to_ctranslate2, "marian": _to_marian, "onnx": _to_onnx}[to]
    result = Exported(str(out), to, precision)
    with atomic_folder(out) as folder:
        progress("Exporting", 0, 2)
        check = exporter(run, folder, result)
        progress("Exporting", 1, 2)
        result.difference = check(lines)
        result.bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    progress("Exporting", 2, 2)
    return result


def _check_precision(to: str, precision: str) -> None:
    from headcount.interop.ctranslate2_export import PRECISIONS

    if to == "ctranslate2" and precision not in PRECISIONS:
        raise UserError(
            f"Unknown precision '{precision}'.", f"Choose among {', '.join(PRECISIONS)}."
        )
    if to != "ctranslate2" and precision != "float32":
        raise UserError(f"{to} is written in float32 only.", "Leave --precision out.")


# What each exporter gives back: a function that loads the folder and compares it with the run on
# random sentences and on the given lines.
Check = Callable[[Sequence[str]], float]


def _to_ctranslate2(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.ctranslate2_check import Comparison, check_ctranslate2
    from headcount.interop.ctranslate2_export import build_spec, write_ctranslate2
    from headcount.interop.plain_tokenizers import write_plain_tokenizers

    spec, result.padded_heads = build_spec(run)
    write_ctranslate2(spec, folder, result.precision)
    write_plain_tokenizers(run, folder)

    def check(lines: Sequence[str]) -> float:
        comparison = Comparison(run, make_sample(run, lines).sentences)
        return check_ctranslate2(comparison, folder, result.precision)

    return check


def _to_marian(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.marian_export import check_marian, write_marian

    result.padded_heads, result.notes = write_marian(run, folder)
    return lambda lines: check_marian(run, folder, lines)


def _to_onnx(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.onnx_export import check_onnx, write_onnx

    write_onnx(run, folder)
    return lambda lines: check_onnx(run, folder, make_sample(run, lines))
