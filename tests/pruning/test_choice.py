"""What heads can be chosen by: methods, measures, columns of the head table."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headcount.data.corpus_folder import load_corpus
from headcount.distribution import connect
from headcount.errors import UserError
from headcount.heads import Head
from headcount.progress import silent
from headcount.pruning.by_score import measured_scores
from headcount.pruning.methods import METHODS
from headcount.pruning.prune import prune
from headcount.pruning.settings import check_choice, make_settings
from headcount.ranking.rank import rank
from headcount.run import load_run


@pytest.fixture
def with_columns(baseline: Path) -> Iterator[Callable[..., None]]:
    """Write columns into the baseline's head table; they are gone afterwards."""
    run = load_run(baseline)

    def write(**columns: dict[Head, object]) -> None:
        table = run.head_table()
        for name, values in columns.items():
            table.add(name, values)
        table.save(run.analysis)

    yield write
    for path in run.analysis.glob("heads.*"):
        path.unlink()


ENCODER = [Head("enc", layer, index) for layer in range(2) for index in range(2)]


def test_any_column_of_numbers_chooses(
    baseline: Path, corpus: Path, tmp_path: Path, with_columns: Callable[..., None]
) -> None:
    """Also a partial one: heads without a number go first."""
    with_columns(mine=dict(zip(ENCODER, [-3, 5.0, -1], strict=False)))
    for keep, expected in ((1, ENCODER[1:2]), (3, ENCODER[:3])):
        out = tmp_path / str(keep)
        run = prune(baseline, corpus, out, keep=keep, by="mine", updates=0, bleu_sentences=0)
        assert run.model.heads.heads(["enc"]) == expected


def test_what_is_no_column_of_numbers_is_refused_before_anything_is_written(
    baseline: Path, corpus: Path, tmp_path: Path, with_columns: Callable[..., None]
) -> None:
    decoder = {Head("dec", 0, 0): 1.0}
    with_columns(roles={ENCODER[0]: "positional -1"}, other=decoder, mine={ENCODER[0]: 1.0})
    for name in ("roles", "other", "nothing"):
        with pytest.raises(UserError, match=f"--by {name}.*mine"):
            prune(baseline, corpus, tmp_path / "out", keep=1, by=name, updates=0)
    assert not (tmp_path / "out").exists()
    run = load_run(baseline)
    check_choice(make_settings(keep=1, by="other", sites="dec"), run)
    for method in METHODS.values():
        check_choice(make_settings(**{method.needs: 2}, by=method.name), run)
    check_choice(make_settings(keep=1), run)


def test_a_measure_of_other_weights_is_taken_again(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    """Scores of the run's own weights are used as they stand in the table, older ones are not."""
    folder = Path(shutil.copytree(baseline, tmp_path / "run"))
    text = load_corpus(corpus, "en-fr", check=False)
    rank(folder, text.path("dev", "source"), by=["confidence"], sites=["enc"], save=True)
    run = load_run(folder)
    marked = {head: float(number) for number, head in enumerate(ENCODER)}
    table = run.head_table()
    table.add("confidence", marked)
    table.save(run.analysis)
    settings = make_settings(keep=2, by="confidence")
    with connect(None) as workers:
        assert measured_scores(run, settings, text, workers, silent) == marked
        run.model.source_embedding.table.weight.data *= 1.5
        run.save()
        assert max(measured_scores(run, settings, text, workers, silent).values()) <= 1
