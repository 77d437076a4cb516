"""`headcount score`."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.cli.console import JSON, QUIET, print_json, progress_bar, results
from headcount.cli.translate import BATCH_TOKENS, BEAM, LENGTH_PENALTY, RUN


def score(
    run: Path = RUN,
    src: Path = typer.Option(..., "--src", help="Source sentences, one per line."),
    ref: Path = typer.Option(..., "--ref", help="Their reference translations."),
    baseline: Path | None = typer.Option(
        None, "--baseline", help="Another run to compare with, by a paired bootstrap test."
    ),
    beam: int | None = BEAM,
    length_penalty: float | None = LENGTH_PENALTY,
    batch_tokens: int = BATCH_TOKENS,
    resamples: int = typer.Option(
        1000, "--resamples", min=0, help="Bootstrap resamples for the 95 % interval; 0: none."
    ),
    output: Path | None = typer.Option(None, "--output", help="Also keep the translations here."),
    json: bool = JSON,
    quiet: bool = QUIET,
) -> None:
    """BLEU and chrF of a run's translations, with sacreBLEU's signature."""
    from headcount.distribution import default_device
    from headcount.files import write_text
    from headcount.model.decoding import Search
    from headcount.run import load_run
    from headcount.scoring import compare_lines, read_pair, score_lines
    from headcount.translation import translate_lines

    sources, references = read_pair(src, ref)
    with progress_bar(quiet) as progress:

        def translated(folder: Path) -> list[str]:
            loaded = load_run(folder, default_device())
            search = Search.of(loaded.config.search, beam=beam, length_penalty=length_penalty)
            task = progress.add_task(f"Translating with {folder.name}", total=len(sources))
            return translate_lines(
                loaded,
                sources,
                search,
                batch_tokens=batch_tokens,
                report=lambda sentences: progress.advance(task, sentences),
            )

        hypotheses = translated(run)
        if output:
            write_text(output, "".join(line + "\n" for line in hypotheses))
        if baseline is None:
            scores, other = score_lines(hypotheses, references, resamples), None
        else:
            scores, other = compare_lines(hypotheses, translated(baseline), references, resamples)
    if json:
        compared = {} if other is None else {"baseline": other.to_json()}
        print_json({"run": str(run), **scores.to_json(), **compared})
        return
    results.print(f"{scores}", soft_wrap=True)
    if other is not None:
        results.print(f"{other}  ({baseline})", soft_wrap=True)
    if not quiet:
        for measure in (scores.bleu, scores.chrf):
            results.print(f"{measure.name}: {measure.signature}", soft_wrap=True)
