"""Score one model of a study: `python -m headcount.study.score_model RUN CORPUS OUT SENTENCES`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headcount.data.corpus_folder import load_corpus
from headcount.data.splitting import spread
from headcount.distribution import Workers, default_device
from headcount.files import read_json, write_json
from headcount.model.arithmetic import count_parameters
from headcount.progress import silent
from headcount.pruning.process import data_config
from headcount.run import load_run
from headcount.scoring import RESAMPLES, Scores, score_lines
from headcount.study.paired import SentenceCounts, sentence_counts_path
from headcount.training.metrics import dev_loss
from headcount.training.preparation import prepare_training
from headcount.translation import translate_lines


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
    def bleu_p_value(self) -> float | None:
        """Of the difference from the baseline, where the two were compared."""
        return self.test.bleu.p_value if self.test else None

    @property
    def bleu_signature(self) -> str:
        """How sacreBLEU was called."""
        return self.test.bleu.signature if self.test else ""

    @property
    def chrf(self) -> float | None:
        """Test chrF."""
        return self.test.chrf.value if self.test else None

    @property
    def chrf_interval(self) -> float | None:
        """Half the width of its 95 % interval."""
        return self.test.chrf.interval if self.test else None

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
        return cls.from_json(read_json(path), kept)

    def save(self, path: Path) -> None:
        """Write the file of a model, and the counts of sentences beside it."""
        if self.sentences is not None:
            self.sentences.save(sentence_counts_path(path))
        write_json(path, self.to_json())


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
    training = run.config.training.model_copy(update={"bleu_sentences": 0})
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
