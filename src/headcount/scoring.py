"""How good translations are: sacreBLEU's BLEU and chrF with their signatures (Sec. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from headcount.errors import UserError
from headcount.model.decoding import GREEDY, Search
from headcount.run import Run
from headcount.translation import translate_lines

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
        chance = "" if self.p_value is None else f" (p = {self.p_value:.4f})"
        return f"{self.name} {self.value:.2f}{spread}{chance}"


@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of one set of translations."""

    bleu: Measure
    chrf: Measure
    lines: int

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.bleu}  {self.chrf}"


def score_lines(hypotheses: Sequence[str], references: Sequence[str], resamples: int = 0) -> Scores:
    """BLEU and chrF; with `resamples` also bootstrap confidence intervals (Koehn 2004)."""
    resamples = _check(hypotheses, references, resamples)
    bleu, chrf = (
        _measure(metric, hypotheses, references, resamples) for metric in _metrics().values()
    )
    return Scores(bleu, chrf, len(hypotheses))


def compare_lines(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    references: Sequence[str],
    resamples: int = RESAMPLES,
) -> tuple[Scores, Scores]:
    """Scores of the hypotheses and of a baseline, the former with the paired bootstrap's p-value.

    The p-value is the chance of a difference this large between two systems that are equal.
    """
    resamples = _check(hypotheses, references, resamples)
    _check(baseline, references, resamples)
    named = [("baseline", baseline), ("system", hypotheses)]
    signatures, results = PairedTest(named, _metrics(), [references], "bs", resamples)()
    same = list(hypotheses) == list(baseline)
    columns = []
    for place in (1, 0):
        measures = []
        for name in ("BLEU", "chrF2"):
            result: Any = results[name][place]
            chance = 1.0 if same and place else result.p_value
            measures.append(
                Measure(name, result.score, str(signatures[name]), result.mean, result.ci, chance)
            )
        columns.append(Scores(measures[0], measures[1], len(references)))
    return columns[0], columns[1]


def quick_bleu(run: Run, sources: Sequence[str], references: Sequence[str]) -> float:
    """BLEU of greedy translations, nothing else: what training watches."""
    hypotheses = translate_lines(run, sources, GREEDY)
    _check(hypotheses, references, 0)
    return float(_metrics()["BLEU"].corpus_score(hypotheses, [references]).score)


def score_run(
    run: Run,
    sources: Sequence[str],
    references: Sequence[str],
    search: Search | None = None,
    resamples: int = RESAMPLES,
) -> Scores:
    """Translate the sources and score the translations."""
    _check(sources, references, resamples)
    return score_lines(translate_lines(run, sources, search), references, resamples)


def _metrics() -> dict[str, Metric]:
    # `force`: our output is detokenised, and asking whether it is costs a warning.
    return {"BLEU": BLEU(force=True), "chrF2": CHRF()}


def _measure(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], resamples: int
) -> Measure:
    score = metric.corpus_score(hypotheses, [references], n_bootstrap=resamples)
    signature = str(metric.get_signature())
    spread = (float(score._mean), float(score._ci)) if resamples > 1 else (None, None)
    return Measure(score.name, float(score.score), signature, *spread)


def _check(hypotheses: Sequence[str], references: Sequence[str], resamples: int) -> int:
    """Make sure that there is a reference for each line; how many resamples fit in memory."""
    if len(hypotheses) != len(references):
        raise UserError(
            f"{len(hypotheses)} lines to score, but {len(references)} references.",
            "Both must have the same number of lines.",
        )
    if not references:
        raise UserError("There is nothing to score.", "Give at least one line.")
    return max(min(resamples, _RESAMPLED_LINES // len(references)), min(resamples, 2))
