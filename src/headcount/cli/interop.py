"""`headcount import` and `headcount export`."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, StageReporter, print_json, remarks, results


def import_run(
    model: str = typer.Argument(
        ...,
        help="A folder, or a name on the Hugging Face hub, of a model of transformers."
        " Families: {families}. Or a folder with a model of the Marian toolkit"
        " (.npz, .bin), or a package of Argos Translate.",
    ),
    out: Path = typer.Option(..., "--out", help="The run folder to write."),
    languages: str | None = typer.Option(
        None, "--languages", help="Both languages at once: source-target, as in en-fr."
    ),
    source_language: str | None = typer.Option(
        None, "--source-language", help="Where the model knows many: en, eng_Latn or en_XX."
    ),
    target_language: str | None = typer.Option(
        None, "--target-language", help="The language to translate to."
    ),
    prefix: str = typer.Option(
        "", "--prefix", help='T5: text before every sentence: "translate English to French: ".'
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Make a run of a model of transformers (OPUS-MT, NLLB, BART, T5, ...), Marian or Argos."""
    from headcount.heads import SITES
    from headcount.interop.importing import import_run as import_model
    from headcount.interop.importing import parse_languages

    pair = None if languages is None else parse_languages(languages)
    if not (quiet or Path(model).is_dir()):
        remarks.print(f"Asking the Hugging Face hub for {model} ...", soft_wrap=True)
    imported = import_model(
        model,
        out,
        languages=pair,
        source_language=source_language,
        target_language=target_language,
        prefix=prefix,
        progress=StageReporter(quiet),
    )
    heads = {site: imported.run.model.heads.count(site) for site in SITES}
    if json:
        summary = {"heads": heads, "difference": imported.difference, "notes": imported.notes}
        print_json({"run": str(out), **summary})
        return
    for note in imported.notes if not quiet else ():
        remarks.print(f"Note: {note}.", soft_wrap=True)
    counts = "  ".join(f"{site} {count}" for site, count in heads.items())
    compared = (
        "It was not compared with Marian"
        if imported.difference is None
        else f"Logits equal the model's (largest difference {imported.difference:.1e})"
    )
    results.print(f"{out}: heads {counts}. {compared}.", soft_wrap=True)


COMPARED_LINES = 200


def export(
    run: Path = typer.Argument(..., help="A run folder."),
    to: str = typer.Option(..., "--to", help="{exports}"),
    out: Path = typer.Option(..., "--out", help="The folder to write."),
    precision: str = typer.Option(
        "float32", "--precision", help="Of the weights; ctranslate2 has int8 and others too."
    ),
    src: Path | None = typer.Option(
        None,
        "--src",
        help=f"Sentences to compare the export with the run on (the first {COMPARED_LINES}),"
        " besides random ones.",
    ),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """Write a run for another engine, load it there and compare it with the run."""
    from headcount.files import read_lines
    from headcount.interop.export import EXPORTS
    from headcount.interop.export import export as export_run

    lines = list(islice(read_lines(src), COMPARED_LINES)) if src else []
    exported = export_run(
        run, to, out, precision=precision, lines=lines, progress=StageReporter(quiet)
    )
    if json:
        print_json(exported.to_json())
        return
    if exported.padded_heads and not quiet:
        remarks.print(
            f"Heads of zeros added, which cost time and space: {exported.padded_heads}."
            f" {EXPORTS[to].padding}",
            soft_wrap=True,
        )
    if exported.padded_units and not quiet:
        remarks.print(
            f"{to} needs feed-forward units where this run has none. Units of zeros added:"
            f" {exported.padded_units}.",
            soft_wrap=True,
        )
    for note in exported.notes if not quiet else ():
        remarks.print(f"Note: {note}.", soft_wrap=True)
    what = "mean" if precision != "float32" else "largest"
    results.print(
        f"{out}: {exported.bytes / 1e6:.1f} MB, loaded and compared ({what} difference"
        f" {exported.difference:.1e}).",
        soft_wrap=True,
    )
