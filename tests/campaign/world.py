"""A small world to disturb: a corpus, a run with checkpoints and analyses, a pruned run, a study.

Everything is made by headcount's own verbs, once, and copied for each case.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

WORDS = {"a": "un", "the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "big": "grand"}

RECIPE = """\
data: {{corpus: null, folder: {corpus}, source_vocabulary: 60, target_vocabulary: 60}}
model: {{layers: 2, heads: 2, width: 16, ff_width: 32}}
training: {{updates: 4, batch_tokens: 60, device_tokens: 60, warmup: 5, learning_rate_scale: 0.5,
  log_every: 3, evaluate_every: 4, save_every: 2, bleu_sentences: 0, average_checkpoints: 1,
  watch_heads: false}}
"""

STUDY = """\
title: Small
pairs: [{name: en-fr, domain: small, recipe: recipe.yaml, conllu: text.conllu}]
analysis: {rank_sentences: 4, role_sentences: 4, score_sentences: 4}
pruning: {updates: 4, encoder_penalties: [0.01]}
bench: false
"""

Call = Callable[..., int]


def write_text_files(folder: Path) -> None:
    """The corpus, some text with its parses, the recipes."""
    rng = random.Random(7)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    for split, count in (("train", 60), ("dev", 8), ("test", 8)):
        english = [" ".join(rng.choices(list(WORDS), k=rng.randint(3, 8))) for _ in range(count)]
        french = [" ".join(WORDS[word] for word in line.split()) for line in english]
        for language, lines in (("en", english), ("fr", french)):
            (corpus / f"{split}.{language}").write_text("".join(f"{line}\n" for line in lines))
    for language in ("en", "fr"):
        shutil.copy(corpus / f"dev.{language}", folder / f"text.{language}")
    trees = []
    for line in (corpus / "dev.en").read_text().splitlines():
        words = line.split()
        rows = [
            f"{i}\t{word}\t{word}\tNOUN\t_\t_\t{0 if i == 1 else 1}\t"
            f"{'root' if i == 1 else 'nsubj'}\t_\t_"
            for i, word in enumerate(words, start=1)
        ]
        trees.append(f"# text = {line}\n" + "\n".join(rows) + "\n\n")
    (folder / "text.conllu").write_text("".join(trees))
    (folder / "recipe.yaml").write_text(RECIPE.format(corpus="corpus"))
    (folder / "study.yaml").write_text(STUDY)


def build(folder: Path, call: Call) -> None:
    """Make the world in `folder`; `call(folder, *arguments)` runs headcount there."""
    write_text_files(folder)
    steps = [
        ("train", "recipe.yaml", "--out", "run", "--quiet"),
        ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet"),
        ("roles", "run", "--src", "text.en", "--conllu", "text.conllu", "--quiet"),
        ("prune", "run", "--train", "corpus", "--out", "pruned", "--keep", "1", "--quiet",
         "--updates", "3", "--batch-tokens", "60"),
    ]  # fmt: skip
    for step in steps:
        code = call(folder, *step)
        if code != 0:
            raise RuntimeError(f"headcount {' '.join(step)} ended with {code}")


# Commands that read a file of some kind, tried on mutations of it. Paths are relative to the copy.
READERS: dict[str, list[tuple[str, ...]]] = {
    "recipe.yaml": [("train", "recipe.yaml", "--out", "new", "--quiet")],
    "study.yaml": [("study", "study.yaml", "--out", "new", "--dry-run")],
    "text.en": [
        ("translate", "run", "--input", "text.en", "--output", "new"),
        ("score", "run", "--src", "text.en", "--ref", "text.fr"),
        ("rank", "run", "--src", "text.en", "--by", "confidence"),
    ],
    "text.conllu": [("roles", "run", "--conllu", "text.conllu")],
    "corpus/train.*": [
        ("train", "recipe.yaml", "--out", "new", "--quiet"),
        ("data", "own", "--from", "corpus", "--pair", "en-fr", "--out", "new"),
    ],
    "corpus/prepared/*/*": [("train", "recipe.yaml", "--out", "new", "--quiet")],
    "run/*": [
        ("translate", "run", "--input", "text.en", "--output", "new"),
        ("rank", "run", "--src", "text.en", "--by", "lrp,confidence"),
        ("roles", "run", "--src", "text.en", "--conllu", "text.conllu"),
        ("prune", "run", "--train", "corpus", "--out", "new", "--by", "confidence", "--keep", "1",
         "--no-finetune"),
        ("train", "--resume", "run", "--quiet"),
    ],
    "run/checkpoints/*/*": [("train", "--resume", "run", "--quiet")],
    "run/analysis/*.json": [
        ("rank", "run", "--src", "text.en", "--by", "confidence"),
        ("prune", "run", "--train", "corpus", "--out", "new", "--by", "lrp", "--keep", "1",
         "--no-finetune"),
        ("report", "run", "--quiet"),
    ],
    "pruned/*": [
        ("prune", "run", "--train", "corpus", "--out", "pruned", "--keep", "1", "--resume",
         "--updates", "3", "--batch-tokens", "60", "--quiet"),
        ("translate", "pruned", "--input", "text.en", "--output", "new"),
        ("train", "--resume", "pruned", "--quiet"),
    ],
}  # fmt: skip

# Commands that write, for kills, full disks, two at once and clocks that jump: how to begin, how to
# go on after an interruption, and the file that must come out the same.
WRITERS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "train": (
        ("train", "recipe.yaml", "--out", "new", "--quiet"),
        ("train", "recipe.yaml", "--out", "new", "--quiet", "--resume"),
        "new/model.safetensors",
    ),
    "prune": (
        ("prune", "run", "--train", "corpus", "--out", "new", "--keep", "1", "--updates", "3",
         "--batch-tokens", "60", "--quiet"),
        ("prune", "run", "--train", "corpus", "--out", "new", "--keep", "1", "--updates", "3",
         "--batch-tokens", "60", "--quiet", "--resume"),
        "new/model.safetensors",
    ),
    "rank": (
        ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet"),
        ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet"),
        "run/analysis/head-table.json",
    ),
    "roles": (
        ("roles", "run", "--src", "text.en", "--conllu", "text.conllu", "--quiet"),
        ("roles", "run", "--src", "text.en", "--conllu", "text.conllu", "--quiet"),
        "run/analysis/roles.json",
    ),
    "translate": (
        ("translate", "run", "--input", "text.en", "--output", "new", "--quiet"),
        ("translate", "run", "--input", "text.en", "--output", "new", "--quiet"),
        "new",
    ),
    "data": (
        ("data", "own", "--from", "corpus", "--pair", "en-fr", "--out", "new", "--quiet"),
        ("data", "own", "--from", "corpus", "--pair", "en-fr", "--out", "new", "--quiet"),
        "new/train.en",
    ),
}  # fmt: skip
