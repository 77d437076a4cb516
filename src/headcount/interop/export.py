"""`headcount export`: a run in the format of another engine, checked before it gets its name.

Each export is written into a temporary folder, loaded from there by the engine itself and compared
with the run; only then is it renamed. A failed comparison leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headcount.errors import UserError
from headcount.files import atomic_folder, owned
from headcount.interop.checking import require_extra
from headcount.progress import Progress, silent
from headcount.registry import Registry

if TYPE_CHECKING:  # `--help` lists the formats without loading torch
    from headcount.model.transformer import Transformer
    from headcount.run import Run


@dataclass
class Exported:
    """What was written, and how it compared.

    `difference` is the largest difference of logits (transformers, onnx) or of log-probabilities
    (ctranslate2; the mean one where weights are rounded) between the export and the run. `shift` is
    how far log-probabilities of the run as it is are moved because the engine never writes some
    tokens; it is not part of `difference`. `padded_heads` and `padded_units` are zeros that the
    engine needs where the run was pruned.
    """

    folder: str
    format: str
    precision: str
    difference: float = 0.0
    shift: float = 0.0
    padded_heads: int = 0
    padded_units: int = 0
    bytes: int = 0
    notes: list[str] = field(default_factory=list)

    def describe_padding(self, model: Transformer, written: Transformer) -> None:
        """Note the zeros that the engine needed, and into how many layers blocks were put."""
        from headcount.model.gating import zeros_added

        self.padded_heads, self.padded_units = zeros_added(model, written)
        for side in ("encoder", "decoder"):
            before, after = (getattr(m.config, f"{side}_layers") for m in (model, written))
            if after < before:
                self.notes.append(
                    f"what is left of the {before} {side} layers is written as {after}"
                )

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
    """Write a run for another engine, load it there and compare it with the run.

    `to` is a name of EXPORTS. Random sentences are compared; `lines` are compared as well.
    """
    from headcount.interop.checking import refuse_existing
    from headcount.run import open_run

    entry = EXPORTS.find(to)
    require_extra(entry.extra)
    _check_precision(entry, precision)
    out = Path(out)
    refuse_existing(out)
    run = open_run(run)
    result = Exported(str(out), to, precision)
    with owned(out), atomic_folder(out) as folder:
        progress("Exporting", 0, 2)
        check = entry.write(run, folder, result)
        progress("Exporting", 1, 2)
        result.difference = check(lines)
        result.bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    progress("Exporting", 2, 2)
    return result


def _check_precision(entry: Export, precision: str) -> None:
    if precision not in entry.precisions and len(entry.precisions) > 1:
        raise UserError(
            f"Unknown precision '{precision}'.", f"Choose among {', '.join(entry.precisions)}."
        )
    if precision not in entry.precisions:
        raise UserError(f"{entry.name} is written in float32 only.", "Leave --precision out.")


# What each exporter gives back: a function that loads the folder and compares it with the run on
# random sentences and on the given lines.
Check = Callable[[Sequence[str]], float]


def _to_ctranslate2(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.checking import make_sample
    from headcount.interop.ctranslate2_export import (
        Comparison,
        banned_tokens,
        build_spec,
        check_ctranslate2,
        write_ctranslate2,
        written_end,
    )
    from headcount.interop.plain_tokenizers import token_names, write_plain_tokenizers

    spec, written = build_spec(run)
    result.describe_padding(run.model, written)
    write_ctranslate2(spec, folder, result.precision)
    write_plain_tokenizers(run, folder, source_end=bool(written_end(run)))

    def check(lines: Sequence[str]) -> float:
        comparison = Comparison(run, make_sample(run, lines).sentences)
        difference = check_ctranslate2(comparison, folder, result.precision)
        result.shift = comparison.shift
        names = ", ".join(token_names(run)[1][token] for token in banned_tokens(run))
        result.notes.append(
            f"CTranslate2 never writes {names}, and shares their probability among the other"
            f" tokens: its log-probabilities are up to {comparison.shift:.1e} above the run's own"
        )
        return difference

    return check


def _to_transformers(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.transformers_export import (
        check_transformers,
        family_of_run,
        write_transformers,
    )

    family = family_of_run(run)
    written, result.notes = write_transformers(run, folder, family)
    result.describe_padding(run.model, written)
    return lambda lines: check_transformers(run, folder, lines, family)


def _to_marian(run: Run, folder: Path, result: Exported) -> Check:
    family = run.config.model.family
    if family not in (None, "marian"):
        raise UserError(
            f"{run.folder} is not a MarianMT model but one of '{family}'.",
            "Export it to transformers.",
        )
    return _to_transformers(run, folder, result)


def _to_onnx(run: Run, folder: Path, result: Exported) -> Check:
    from headcount.interop.checking import make_sample
    from headcount.interop.onnx_export import check_onnx, write_onnx

    write_onnx(run, folder)
    return lambda lines: check_onnx(run, folder, make_sample(run, lines))


@dataclass(frozen=True)
class Export:
    """A format: the extra that it needs, its precisions, and what writes it.

    `padding` says where it needs heads of zeros, and how to do without.
    """

    name: str
    help: str
    extra: str
    write: Callable[[Run, Path, Exported], Check]
    precisions: tuple[str, ...] = ("float32",)
    padding: str = ""


_AS_BEFORE = "These models have as many heads in each layer as the run had before it was pruned."

EXPORTS: Registry[Export] = Registry(
    "format",
    [
        Export(
            "ctranslate2",
            "the CTranslate2 engine, float32 or rounded",
            "ctranslate2",
            _to_ctranslate2,
            ("float32", "int8", "int16", "float16", "bfloat16", "int8_float16", "int8_bfloat16"),
            "ctranslate2 has one number of heads, at least 1, for all layers of the encoder, and"
            " one for both kinds of attention in all layers of the decoder. A run that keeps them"
            " like that needs no zeros: `headcount prune --keep enc=K,dec=M,cross=M --even`.",
        ),
        Export(
            "transformers",
            "the family of models that the run was imported from; MarianMT for others",
            "marian",
            _to_transformers,
            padding=_AS_BEFORE,
        ),
        Export("marian", "MarianMT of transformers", "marian", _to_marian, padding=_AS_BEFORE),
        Export("onnx", "graphs of the encoder and of a decoder step", "onnx", _to_onnx),
    ],
)
