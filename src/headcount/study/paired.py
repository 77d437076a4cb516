"""Differences in BLEU between models that translated the same sentences, with intervals.

Two models of a study are scored on one test set, and a sentence that is hard for one of them is
hard for the other. Resampling sentences for both at once (the paired bootstrap of Koehn, 2004)
therefore gives a much narrower interval for the difference than the intervals of the two scores
would. What it needs of a model is small: ten counts per sentence.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from headcount.bootstrap import draw_groups
from headcount.errors import UserError
from headcount.files import read_json, write_json

LEVEL = 0.95
ORDERS = 4
"""BLEU counts n-grams of up to four tokens."""


def sentence_counts_path(scores: Path) -> Path:
    """The file with counts per sentence beside a model's scores: `ID.sentences.json`."""
    return scores.with_name(f"{scores.stem}.sentences.json")


@dataclass(frozen=True)
class SentenceCounts:
    """What BLEU is computed from, for each sentence of a test set.

    counts    `[sentences, 10]`: tokens of the translation and of the reference, then matching
              n-grams and all n-grams of the translation, for n = 1 to 4
    test_set  a hash of the references: only counts of one test set can be compared
    """

    counts: np.ndarray
    test_set: str

    @classmethod
    def of(cls, translations: Sequence[str], references: Sequence[str]) -> SentenceCounts:
        """Count the n-grams of each translation, as sacreBLEU does for the whole test set."""
        metric = BLEU(force=True)
        rows = []
        for translation, reference in zip(translations, references, strict=True):
            score = metric.corpus_score([translation], [[reference]])
            rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
        digest = hashlib.sha256("\n".join(references).encode()).hexdigest()
        return cls(np.array(rows, dtype=np.int64), digest)

    def save(self, path: Path) -> None:
        """Write the counts as JSON."""
        write_json(path, {"test_set": self.test_set, "counts": self.counts.tolist()})

    @classmethod
    def load(cls, path: Path) -> SentenceCounts:
        """Read what `save` wrote."""
        stored: Any = read_json(path)
        try:
            counts = np.array(stored["counts"], dtype=np.int64)
            if counts.ndim != 2 or counts.shape[1] != 2 + 2 * ORDERS:
                raise ValueError(f"shape {counts.shape}")
            return cls(counts, str(stored["test_set"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{path} holds no BLEU counts ({error!r}).", "Score the model again."
            ) from error


@dataclass(frozen=True)
class Difference:
    """A difference in BLEU, its 95 % interval, and how the interval was found."""

    value: float
    low: float
    high: float
    sentences: int
    paired: bool

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def sentences_needed(self, limit: float) -> int | None:
        """How large a test set would have to be for the interval to leave out `limit`.

        The width of the interval shrinks with the square root of the number of sentences. None
        where the difference is so close to the limit that no test set would do.
        """
        gap = abs(self.value - limit)
        if gap < 0.01:
            return None
        needed = self.sentences * (self.half_width / gap) ** 2
        digits = max(0, math.floor(math.log10(max(needed, 1))) - 1)
        return int(math.ceil(needed / 10**digits) * 10**digits)


def bleu_of(sums: np.ndarray) -> np.ndarray:
    """BLEU of summed counts, `[..., 10]` to `[...]`: sacreBLEU's, with exponential smoothing."""
    system, reference = sums[..., 0].astype(float), sums[..., 1].astype(float)
    matches = sums[..., 2 : 2 + ORDERS].astype(float)
    totals = sums[..., 2 + ORDERS :].astype(float)
    # The first order without a match counts as half a match, the next as a quarter, and so on.
    halvings = np.cumsum(matches == 0, axis=-1)
    smoothed = np.where(matches == 0, 0.5**halvings, matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smoothed / totals).mean(-1)
        brevity = np.where(system < reference, np.exp(1 - reference / system), 1.0)
        bleu = 100 * brevity * np.exp(logs)
    # sacreBLEU gives 0 where nothing matches at all, and where an order has no n-grams.
    usable = (matches.sum(-1) > 0) & (totals > 0).all(-1)
    return np.where(usable, bleu, 0.0)


def paired_difference(
    models: Sequence[SentenceCounts],
    others: Sequence[SentenceCounts],
    *,
    twins: bool = False,
    seed: int = 1,
) -> Difference:
    """Mean BLEU of some models minus that of others, by the paired bootstrap.

    Each resample draws sentences once for all models. Where there are several models on a side
    (seeds), it draws those too, so that the interval covers what another seed would change; `twins`
    are drawn together, the n-th of one side with the n-th of the other.
    """
    rng = np.random.default_rng(seed)
    sentences = len(models[0].counts)
    drawn = draw_groups(sentences, rng)
    sides: list[np.ndarray] = []
    chosen = np.zeros((0, 0), dtype=np.int64)
    for side in (models, others):
        resampled = np.stack([bleu_of(drawn @ model.counts) for model in side])  # [models, draws]
        if not sides or not twins:
            chosen = rng.integers(len(side), size=resampled.shape)
        sides.append(np.take_along_axis(resampled, chosen, 0).mean(0))
    differences = sides[0] - sides[1]
    low, high = np.quantile(differences, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = _mean_bleu(models) - _mean_bleu(others)
    return Difference(value, float(low), float(high), sentences, paired=True)


def unpaired_difference(
    bleu: float, half_width: float, other: float, other_half_width: float, sentences: int
) -> Difference:
    """A difference of two scores of which only the intervals are known: a wider interval."""
    spread = math.hypot(half_width, other_half_width)
    value = bleu - other
    return Difference(value, value - spread, value + spread, sentences, paired=False)


def _mean_bleu(models: Sequence[SentenceCounts]) -> float:
    return float(np.mean([bleu_of(model.counts.sum(0)) for model in models]))
