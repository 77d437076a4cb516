"""Score one model of a study: `python -m headcount.study.score_model RUN CORPUS OUT SENTENCES`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from headcount.data.corpora import load_corpus
from headcount.data.sampling import spread
from headcount.files import write_json
from headcount.progress import silent
from headcount.pruning.data import data_config
from headcount.run import load_run
from headcount.scoring import RESAMPLES, score_lines
from headcount.training.distribution import Workers
from headcount.training.evaluation import dev_loss
from headcount.training.preparation import prepare_training
from headcount.translation import translate_lines


def score_model(run_folder: Path, corpus_folder: Path, sentences: int) -> dict[str, Any]:
    """Test BLEU and chrF with intervals, dev loss, parameters and seconds a sentence."""
    run = load_run(run_folder)
    languages = f"{run.config.data.source}-{run.config.data.target}"
    corpus = load_corpus(corpus_folder, languages, check=False)
    pairs = spread(list(corpus.pairs("test")), sentences)
    sources, references = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    began = time.perf_counter()
    translations = translate_lines(run, sources)
    seconds = time.perf_counter() - began
    data = data_config(run.config, corpus_folder).data
    training = run.config.training.model_copy(update={"bleu_sentences": 0})
    prepared = prepare_training(data, training, silent, tokenizers=run_folder)
    return {
        **score_lines(translations, references, RESAMPLES).to_json(),
        "dev_loss": dev_loss(run.model, prepared.dev, run.target_tokenizer, Workers()),
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        "seconds_per_sentence": seconds / max(1, len(sources)),
    }


if __name__ == "__main__":
    write_json(
        Path(sys.argv[3]), score_model(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[4]))
    )
