"""Scores of models, and differences of models that translated the same sentences.

A study scores one model by `python -m headcount.study.score_model RUN CORPUS OUT SENTENCES`.

Two models of a study are scored on one test set, and a sentence that is hard for one of them is
hard for the other. Resampling sentences for both at once (the paired bootstrap of Koehn, 2004)
therefore gives a much narrower interval for the difference than the intervals of the two scores
would. What it needs of a model is small: ten counts per sentence.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from headcount.bootstrap import LEVEL, draw_groups
from headcount.data.cleaning import spread
from headcount.data.corpus_folder import load_corpus
from headcount.distribution import Workers, default_device
from headcount.errors import UserError
from headcount.files import parsing, read_json, write_json
from headcount.model.arithmetic import count_parameters
from headcount.progress import silent
from headcount.pruning.process import data_config
from headcount.run import load_run
from headcount.scoring import RESAMPLES, Scores, score_lines
from headcount.training.metrics import dev_loss
from headcount.training.preparation import prepare_training
from headcount.translation import translate_lines

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
    of_seeds: float = 0.0
    """The part of its half width that comes from seeds: more sentences do not make it smaller."""

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2

    def sentences_needed(self, limit: float) -> int | None:
        """How large a test set would have to be for the interval to leave out `limit`.

        The part of the width that sentences cause shrinks with the square root of their number.
        None where seeds alone reach the limit, or nearly so: no test set would do.
        """
        gap = abs(self.value - limit)
        room = gap**2 - self.of_seeds**2
        if gap < 0.01 or room < 1e-4:
            return None
        needed = self.sentences * (self.half_width**2 - self.of_seeds**2) / room
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
    twins: Sequence[Hashable] = (),
    seed: int = 1,
) -> Difference:
    """Mean BLEU of some models minus that of others, by the paired bootstrap.

    Each resample draws sentences, the same for all models. Where there are several models on a side
    (seeds), the interval also covers what another seed would change: Student's interval of their
    mean is added in quadrature. With `twins` the n-th of one side is compared with the n-th of the
    other; it says what each pair is a repetition of, and only repetitions are taken for seeds.
    """
    sentences = len(models[0].counts)
    drawn = draw_groups(sentences, np.random.default_rng(seed))
    means = [
        np.stack([bleu_of(drawn @ model.counts) for model in side]).mean(0)  # [draws]
        for side in (models, others)
    ]
    low, high = np.quantile(means[0] - means[1], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    bleus = [np.array([bleu_of(m.counts.sum(0)) for m in side]) for side in (models, others)]
    value = float(bleus[0].mean() - bleus[1].mean())
    if twins:
        gaps = bleus[0] - bleus[1]
        settings = [gaps[[each == one for each in twins]] for one in dict.fromkeys(twins)]
        weighted = [len(group) / len(gaps) * seed_half_width(group) for group in settings]
    else:
        weighted = [seed_half_width(side) for side in bleus]
    spread = math.hypot(*weighted)
    return Difference(
        value,
        value - math.hypot(value - low, spread),
        value + math.hypot(high - value, spread),
        sentences,
        paired=True,
        of_seeds=spread,
    )


STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % quantiles of Student's t distribution with 1, 2, ... degrees of freedom."""


def seed_half_width(bleus: np.ndarray) -> float:
    """Half of Student's 95 % interval of the mean over seeds; 0 for one seed, which tells nothing.

    With more than eleven seeds the last quantile is used: a little too wide.
    """
    count = len(bleus)
    if count < 2:
        return 0.0
    return float(STUDENT[min(count, 11) - 2] * bleus.std(ddof=1) / math.sqrt(count))


def unpaired_difference(
    bleus: Sequence[float],
    half_width: float,
    others: Sequence[float],
    other_half_width: float,
    sentences: int,
) -> Difference:
    """A difference of scores of which only the intervals are known: a wider interval.

    Each side has the BLEU of its seeds, and half of a typical interval over sentences.
    """
    of_seeds = math.hypot(*(seed_half_width(np.array(side)) for side in (bleus, others)))
    spread = math.hypot(half_width, other_half_width, of_seeds)
    value = float(np.mean(bleus) - np.mean(others))
    low, high = value - spread, value + spread
    return Difference(value, low, high, sentences, paired=False, of_seeds=of_seeds)


@dataclass(frozen=True)
class ModelScores:
    """How good and how large a model is: BLEU and chrF on the test set, loss on the dev set.

    `sentences` has the counts behind BLEU sentence by sentence, in a file of their own.
    """

    test: Scores | None = None
    dev_loss: float | None = None
    parameters: int | None = None
    sentences: SentenceCounts | None = None

    @property
    def bleu(self) -> float | None:
        """Test BLEU."""
        return self.test.bleu.value if self.test else None

    @property
    def bleu_interval(self) -> float | None:
        """Half the width of its 95 % interval."""
        return self.test.bleu.interval if self.test else None

    @property
    def bleu_signature(self) -> str:
        """How sacreBLEU was called."""
        return self.test.bleu.signature if self.test else ""

    @property
    def chrf(self) -> float | None:
        """Test chrF."""
        return self.test.chrf.value if self.test else None

    @property
    def lines(self) -> int | None:
        """Sentences of the test set that were translated."""
        return self.test.lines if self.test else None

    def to_json(self) -> dict[str, Any]:
        """As `scores/<model id>.json` has it."""
        test = {} if self.test is None else self.test.to_json()
        return {**test, "dev_loss": self.dev_loss, "parameters": self.parameters}

    @classmethod
    def from_json(
        cls, stored: dict[str, Any], sentences: SentenceCounts | None = None
    ) -> ModelScores:
        """What `to_json` gave."""
        test = Scores.from_json(stored) if stored.get("bleu") else None
        return cls(test, stored.get("dev_loss"), stored.get("parameters"), sentences)

    @classmethod
    def load(cls, path: Path) -> ModelScores:
        """Read the file of a model, and the counts of sentences where they were kept."""
        counts = sentence_counts_path(path)
        kept = SentenceCounts.load(counts) if counts.is_file() else None
        stored = read_json(path)
        with parsing(path, "Score the model again."):
            return cls.from_json(stored, kept)

    def save(self, path: Path) -> None:
        """Write the file of a model, and the counts of sentences beside it."""
        if self.sentences is not None:
            self.sentences.save(sentence_counts_path(path))
        write_json(path, self.to_json())


DEV_SENTENCES = 1000
"""Dev pairs for the loss of every model; recipes of trainings and prunings differ in theirs."""


def score_model(run_folder: Path, corpus_folder: Path, sentences: int) -> ModelScores:
    """Translate test sentences and measure the dev loss, on a GPU where there is one."""
    device = default_device()
    run = load_run(run_folder, device)
    languages = f"{run.config.data.source}-{run.config.data.target}"
    corpus = load_corpus(corpus_folder, languages, check=False)
    pairs = spread(list(corpus.pairs("test")), sentences)
    references = [reference for _, reference in pairs]
    translations = translate_lines(run, [source for source, _ in pairs])
    data = data_config(run.config, corpus_folder).data
    sizes = {"bleu_sentences": 0, "dev_sentences": DEV_SENTENCES}
    training = run.config.training.model_copy(update=sizes)
    prepared = prepare_training(data, training, silent, tokenizers=run_folder)
    workers = Workers(device=device)
    return ModelScores(
        score_lines(translations, references, RESAMPLES),
        dev_loss(run.model, prepared.dev, run.target_tokenizer, workers),
        count_parameters(run.model),
        SentenceCounts.of(translations, references),
    )


if __name__ == "__main__":
    score_model(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[4])).save(Path(sys.argv[3]))
