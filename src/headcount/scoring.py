"""How good translations are: sacreBLEU's BLEU and chrF with their signatures (Sec. 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from headcount.errors import UserError
from headcount.files import read_lines
from headcount.model.decoding import GREEDY
from headcount.run import Run
from headcount.translation import translate, translate_lines

RESAMPLES = 1000

# sacreBLEU keeps the statistics of all resamples of all lines in memory at once, 72 bytes each
# for chrF. Large test sets get fewer resamples; the signature says how many.
_RESAMPLED_LINES = 10_000_000


@dataclass(frozen=True)
class Measure:
    """One metric on one test set; `interval` is half the width of the 95 % interval at `mean`."""

    name: str
    value: float
    signature: str
    mean: float | None = None
    interval: float | None = None
    p_value: float | None = None

    def __str__(self) -> str:
        spread = "" if self.interval is None else f" ± {self.interval:.2f}"
        note = "" if self.p_value is None else f" (p = {self.p_value:.4f})"
        return f"{self.name} {self.value:.2f}{spread}{note}"


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of one set of translations."""

    bleu: Measure
    chrf: Measure
    lines: int

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Scores:
        """What `to_json` gave; other keys are left alone."""
        return cls(Measure(**stored["bleu"]), Measure(**stored["chrf"]), int(stored["lines"]))

    def __str__(self) -> str:
        return f"{self.bleu}  {self.chrf}"


def score_lines(hypotheses: Sequence[str], references: Sequence[str], resamples: int = 0) -> Scores:
    """BLEU and chrF; with `resamples` also bootstrap confidence intervals (Koehn 2004)."""
    _check(hypotheses, references)
    if resamples:
        return _with_intervals([hypotheses], references, resamples)[0]
    measures = []
    for metric in _metrics().values():
        result = metric.corpus_score(hypotheses, [references])
        measures.append(Measure(result.name, float(result.score), str(metric.get_signature())))
    return Scores(measures[0], measures[1], len(hypotheses))


def compare_lines(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    resamples: int = RESAMPLES,
) -> tuple[Scores, Scores]:
    """Scores of the hypotheses and of a baseline, the former with the paired bootstrap's p-value.

    The p-value is the chance of a difference this large between two systems that are equal.
    """
    _check(hypotheses, references)
    _check(baseline, references)
    if not resamples:
        return score_lines(hypotheses, references), score_lines(baseline, references)
    other, own = _with_intervals([baseline, hypotheses], references, resamples)
    return own, other


def _with_intervals(
    systems: Sequence[Sequence[str]], references: Sequence[str], resamples: int
) -> list[Scores]:
    """Scores with intervals; those of all systems but the first with a p-value against it."""
    resamples = max(2, min(resamples, _RESAMPLED_LINES // len(references)))
    named = [(str(number), lines) for number, lines in enumerate(systems)]
    signatures, results = PairedTest(named, _metrics(), [references], "bs", resamples)()
    scores = []
    for place in range(len(systems)):
        measures = []
        for name in _metrics():
            first: Any = results[name][0]
            result: Any = results[name][place]
            # sacreBLEU's own p-value is at its smallest where there is no difference at all.
            p_value = 1.0 if place and result.score == first.score else result.p_value
            spread = float(result.mean), float(result.ci)
            value, signature = float(result.score), str(signatures[name])
            measures.append(Measure(name, value, signature, *spread, p_value))
        scores.append(Scores(measures[0], measures[1], len(references)))
    return scores


def quick_bleu(run: Run, sources: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of greedy translations alone, for watching a training."""
    hypotheses = translate_lines(run, sources, GREEDY)
    _check(hypotheses, references)
    return float(_metrics()["BLEU"].corpus_score(hypotheses, [references]).score)


def score(
    run: Run | Path | str,
    sources: Path | str | Sequence[str],
    references: Path | str | Sequence[str],
    *,
    beam: int | None = None,
    length_penalty: float | None = None,
    resamples: int = RESAMPLES,
) -> Scores:
    """BLEU and chrF of a run's translations, with sacreBLEU's signature.

    Sources and references are lines, or the paths of text files.
    """
    sources, references = read_pair(sources, references)
    translated = translate(run, sources, beam=beam, length_penalty=length_penalty)
    return score_lines(translated, references, resamples)


def read_pair(
    sources: Path | str | Sequence[str], references: Path | str | Sequence[str]
) -> tuple[list[str], list[str]]:
    """Both sides of a test set, from files or lists, after checking that they match."""
    names, sides = [], []
    for what, side in (("sources", sources), ("references", references)):
        if isinstance(side, str | Path):
            names.append(str(side))
            sides.append(list(read_lines(Path(side))))
        else:
            names.append(what)
            sides.append(list(side))
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{names[0]} has {len(sides[0])} lines, {names[1]} has {len(sides[1])}.",
            "Line n of one must be the translation of line n of the other.",
        )
    if not sides[0]:
        raise UserError(f"{names[0]} has no lines.", "Give at least one sentence.")
    return sides[0], sides[1]


def _metrics() -> dict[str, Metric]:
    # `force`: our output is detokenised, and asking whether it is costs a warning.
    return {"BLEU": BLEU(force=True), "chrF2": CHRF()}


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    """Make sure that there is a reference for each line."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} lines to score, but {len(references)} references.",
            "Both must have the same number of lines.",
        )
    if not references:
        raise UserError("There is nothing to score.", "Give at least one line.")
