"""`headcount translate` and `headcount score`."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from headcount.cli.console import JSON, QUIET, print_json, progress_bar, results

if TYPE_CHECKING:
    from headcount.model.decoding import Search
    from headcount.run import Run
    from headcount.translation import Translation

RUN = typer.Argument(..., help="A run folder.")
BEAM = typer.Option(
    None, "--beam", help="Hypotheses per sentence; 1 is greedy. Default: the run's own (4)."
)
LENGTH_PENALTY = typer.Option(
    None,
    "--length-penalty",
    help="0 prefers short translations, larger values longer ones. Default: the run's own (0.6).",
)
BATCH_TOKENS = typer.Option(
    2000, "--batch-tokens", min=1, help="Source tokens translated at once; less takes less memory."
)


def translate(
    run: Path = RUN,
    input: Path | None = typer.Option(None, "--input", help="Text to translate, not stdin."),
    output: Path | None = typer.Option(None, "--output", help="Where to write, not stdout."),
    corpus: Path | None = typer.Option(
        None,
        "--corpus",
        help="A corpus folder, of which --output becomes a copy with the run's translations as"
        " training targets: for a smaller model to learn from.",
    ),
    pairs: int | None = typer.Option(
        None, "--pairs", min=1, help="With --corpus: translate this many training pairs."
    ),
    beam: int | None = BEAM,
    length_penalty: float | None = LENGTH_PENALTY,
    nbest: int = typer.Option(
        1, "--nbest", help="With N > 1: N lines `number ||| translation ||| score` per sentence."
    ),
    batch_tokens: int = BATCH_TOKENS,
    read_ahead: int = typer.Option(
        4000, "--read-ahead", min=1, help="Lines read before the first is translated."
    ),
    json: bool = typer.Option(False, "--json", help="Write one JSON object per sentence."),
    quiet: bool = QUIET,
) -> None:
    """Translate text, one sentence per line, into exactly as many lines."""
    from headcount.distribution import default_device
    from headcount.files import decoded_lines, read_lines
    from headcount.model.decoding import Search
    from headcount.run import load_run
    from headcount.translation import translate_stream

    loaded = load_run(run, default_device())
    search = Search.of(loaded.config.search, beam=beam, nbest=nbest, length_penalty=length_penalty)
    if corpus is not None:
        _translate_corpus(loaded, corpus, input, output, search, pairs, quiet)
        return
    lines = read_lines(input) if input else decoded_lines(sys.stdin.buffer, "standard input")
    with progress_bar(quiet) as progress:
        total = sum(1 for _ in read_lines(input)) if input and not quiet else None
        task = progress.add_task("Translating", total=total)
        stream = translate_stream(
            loaded,
            lines,
            search,
            batch_tokens=batch_tokens,
            read_ahead=read_ahead,
            progress=lambda stage, done, total: progress.update(task, completed=done),
        )
        with _writer(output) as handle:
            for line in _formatted(stream, nbest, json):
                handle.write(line + "\n")


def _translate_corpus(
    run: Run,
    corpus: Path,
    input: Path | None,
    output: Path | None,
    search: Search,
    pairs: int | None,
    quiet: bool,
) -> None:
    from headcount.cli.console import StageReporter
    from headcount.errors import UserError
    from headcount.training.distillation import translate_corpus

    if output is None or input is not None:
        raise UserError(
            "--corpus writes a folder." if input is None else "--corpus and --input are two texts.",
            "Name the folder with --output, and give no --input.",
        )
    translate_corpus(run, corpus, output, search, pairs, StageReporter(quiet))


@contextmanager
def _writer(path: Path | None) -> Iterator[TextIO]:
    """Standard output, or a file that appears only when it is complete."""
    from headcount.files import atomic_path

    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # type: ignore[union-attr]
        yield sys.stdout
        sys.stdout.flush()
        return
    with atomic_path(path) as partial, open(partial, "w", encoding="utf-8", newline="\n") as handle:
        yield handle


def _formatted(stream: Iterable[list[Translation]], nbest: int, json: bool) -> Iterator[str]:
    """The lines to write for each sentence."""
    for number, translations in enumerate(stream):
        if json:
            best = [{"text": t.text, "score": t.score} for t in translations]
            yield json_format.dumps({"line": number, "translations": best}, ensure_ascii=False)
        elif nbest == 1:
            yield translations[0].text
        else:
            for translation in translations:
                yield f"{number} ||| {translation.text} ||| {translation.score:.6f}"


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
                progress=lambda stage, done, total: progress.update(task, completed=done),
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
