"""`headcount report`: read a study, check its claims, draw, and write one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.data.corpus_folder import find_side
from headcount.errors import UserError
from headcount.files import inside, owned, read_lines, require_file, write_json, write_text
from headcount.progress import Progress, silent
from headcount.study import claims
from headcount.study.claims.verdict import Verdict
from headcount.study.explorer import SENTENCES, choose_sentences, read_explorer, write_explorer
from headcount.study.figures import FIGURES, write_animation
from headcount.study.figures.drawing import Drawing, Nothing
from headcount.study.pruning_tables import findings_table
from headcount.study.recipe import FULL
from headcount.study.report.page import render_page
from headcount.study.results import StudyResults, load_results
from headcount.study.study_tables import all_tables, claims_table
from headcount.study.tables import Table

REPORT = "report.html"
CLAIMS = "claims.json"


@dataclass(frozen=True)
class Written:
    """What was written, and the verdicts."""

    page: Path
    bytes: int
    figures: list[Drawing]
    tables: list[Table]
    verdicts: list[Verdict]
    sentences: int
    missing: tuple[str, ...]
    """Models of the study that have not been made yet."""


def write_report(
    folder: Path | str,
    *,
    out: Path | None = None,
    source: Path | None = None,
    sentences: int = SENTENCES,
    progress: Progress = silent,
) -> Written:
    """Check claims, draw figures and tables, and write one self-contained HTML page.

    `folder` is a study's, or one run's.

    out        the page's path; by default `report.html` in the folder
    source     sentences for the explorer; by default the test set of the study's corpora
    sentences  how many of them at most
    """
    results = load_results(folder)
    with owned(results.out):
        return _write(results, out, source, sentences, progress)


def _write(
    results: StudyResults, out: Path | None, source: Path | None, sentences: int, progress: Progress
) -> Written:
    lines = explorer_lines(results, source, sentences)
    if lines:
        write_explorer(results, lines, progress)
    verdicts = claims.check(results)
    write_json(results.out / CLAIMS, [verdict.to_json() for verdict in verdicts])
    tables = [*all_tables(results), claims_table(verdicts), findings_table(verdicts)]
    for table in tables:
        table.save(results.out / "tables")
    figures = _draw(results, progress)
    drawn = [figure for figure in figures if isinstance(figure, Drawing)]
    progress("Writing the page", 0, 1)
    attention = read_explorer(results)
    text = render_page(results, verdicts, tables, figures, attention)
    page = out or results.out / REPORT
    write_text(page, text)
    progress("Writing the page", 1, 1)
    shown = max((len(explored.sentences) for explored in attention), default=0)
    return Written(page, len(text.encode()), drawn, tables, verdicts, shown, results.missing)


def _draw(results: StudyResults, progress: Progress) -> list[Drawing | Nothing]:
    folder = results.out / "figures"
    figures: list[Drawing | Nothing] = []
    for number, draw in enumerate(FIGURES):
        progress("Drawing figures", number, len(FIGURES))
        drawing = draw(results)
        if isinstance(drawing, Drawing):
            drawing.save(folder)
        if drawing is not None:
            figures.append(drawing)
    write_animation(results, folder)
    progress("Drawing figures", len(FIGURES), len(FIGURES))
    return figures


def explorer_lines(
    results: StudyResults, source: Path | None, count: int
) -> dict[str, Sequence[str]]:
    """Sentences for each source language: from `source`, or from a corpus that still exists."""
    languages = [results.pair(model).source for model in results.models]
    if source is not None:
        lines = choose_sentences(read_lines(require_file(source)), count)
        if not lines:
            raise UserError(f"{source} has no sentence.", "Give a file that has some.")
        return {languages[0]: lines}
    chosen: dict[str, Sequence[str]] = {}
    for model in results.models:
        language = results.pair(model).source
        if model.kind != FULL or language in chosen:
            continue
        folders = [inside(results.folder / "corpora", model.pair), model.config.data.folder]
        for path in _held_out([folder for folder in folders if folder is not None], language):
            chosen[language] = choose_sentences(read_lines(path), count)
            break
    return chosen


def _held_out(folders: Sequence[Path], language: str) -> list[Path]:
    """Test and dev sets that exist."""
    paths = []
    for folder in folders:
        for split in ("test", "dev"):
            try:
                paths.append(find_side(folder, split, language))
            except UserError:
                continue
    return paths


report = write_report  # the verb's name, for `headcount.report`

__all__ = ["Written", "report", "write_report"]
