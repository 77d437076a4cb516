"""The paper's figures, one function each, numbered as there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from headcount.study.figures.attention_maps import rare_words_figure
from headcount.study.figures.dependencies import dependency_scores_figure, offsets_figure
from headcount.study.figures.drawing import Drawing, Nothing
from headcount.study.figures.gates import gates_figure, watched_model, write_gate_animation
from headcount.study.figures.head_grid import heads_figure, heads_of_other_pairs_figure
from headcount.study.figures.retained import functions_figure, quality_figure
from headcount.study.figures.sites import decoder_layers_figure, sites_figure
from headcount.study.figures.specialisation import specialisation_figure
from headcount.study.results import StudyResults

FIGURES: list[Callable[[StudyResults], Drawing | Nothing | None]] = [
    heads_figure,
    heads_of_other_pairs_figure,
    offsets_figure,
    dependency_scores_figure,
    rare_words_figure,
    gates_figure,
    quality_figure,
    functions_figure,
    sites_figure,
    decoder_layers_figure,
    specialisation_figure,
]
"""What a report draws; one that is appended stands at the end of the page."""
ANIMATION = "fig6-gates-over-training.gif"


def draw_figures(results: StudyResults) -> Iterator[Drawing]:
    """Every figure that the study has data for, in the paper's order."""
    for draw in FIGURES:
        drawing = draw(results)
        if isinstance(drawing, Drawing):
            yield drawing


def write_animation(results: StudyResults, folder: Path) -> Path | None:
    """The animation that belongs to Figure 6, where gates were logged."""
    model = watched_model(results)
    if model is None:
        return None
    write_gate_animation(model, folder / ANIMATION)
    return folder / ANIMATION
