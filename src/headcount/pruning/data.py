"""The corpus that a pruning trains on must be the kind of text that the model knows."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from headcount.config import Config
from headcount.data.corpus_folder import count_pairs, load_corpus
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.run import Run

LINES = 2000
MOST_UNKNOWN = 0.05


def data_config(config: Config, folder: Path) -> Config:
    """The configuration of a run, with its data taken from another folder."""
    data = config.data.model_copy(update={"folder": folder, "corpus": None, "pairs": None})
    return config.model_copy(update={"data": data})


def check_corpus(run: Run, folder: Path) -> None:
    """Stop where the folder has no dev set, or other languages or another vocabulary than the run.

    Called before anything is written, so that a refused pruning leaves nothing behind.
    """
    source, target = run.config.data.source, run.config.data.target
    corpus = load_corpus(folder, check=False) if _described(folder) else None
    if corpus and (corpus.source_language, corpus.target_language) != (source, target):
        raise UserError(
            f"{folder} is {corpus.source_language}-{corpus.target_language}, but {run.folder}"
            f" translates {source}-{target}.",
            "Give the corpus that the run was trained on, or one like it.",
        )
    corpus = load_corpus(folder, f"{source}-{target}", check=False)
    if not count_pairs(corpus, "dev"):
        raise UserError(f"{corpus.path('dev', 'source')} is empty.", "Give held-out pairs.")
    sides = {"source": run.source_tokenizer, "target": run.target_tokenizer}
    for side, tokenizer in sides.items():
        path = corpus.path("train", side)
        ids, _ = tokenizer.encode_flat(list(islice(read_lines(path), LINES)))
        unknown = float((ids == tokenizer.unk).mean()) if len(ids) else 0.0
        if unknown > MOST_UNKNOWN:
            raise UserError(
                f"{path}: {unknown:.0%} of its tokens are not in the vocabulary of {run.folder}.",
                "Give the corpus that the run was trained on, or one like it.",
            )


def _described(folder: Path) -> bool:
    return (folder / "corpus.json").is_file()
