"""A small world to disturb: a corpus, runs, a study, models of other toolkits, and its commands.

Everything is made by headcount's own verbs (other models by `transformers`), once, and copied for
each case. Paths are relative to the copy.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))

WORDS = {"a": "un", "the": "le", "cat": "chat", "dog": "chien", "sees": "voit", "big": "grand"}

RECIPE = """\
data: {corpus: null, folder: corpus, source_vocabulary: 60, target_vocabulary: 60}
model: {layers: 2, heads: 2, width: 16, ff_width: 32, norm: post, max_positions: 64}
training: {updates: 4, batch_tokens: 60, device_tokens: 60, warmup: 5, learning_rate_scale: 0.5,
  log_every: 3, evaluate_every: 4, save_every: 2, bleu_sentences: 0, average_checkpoints: 1,
  watch_heads: false}
"""

STUDY = """\
title: Small
pairs: [{name: en-fr, domain: small, recipe: recipe.yaml, conllu: text.conllu}]
analysis: {rank_sentences: 3, role_sentences: 4, score_sentences: 3}
pruning: {updates: 3, encoder_penalties: [0.01], encoder_keep: [1], keep_by: [lrp],
  all_penalties: [0.02], scratch_penalties: [0.02]}
bench: false
"""

# Every kind of stage, as few of each as can be.
STAGES = """\
title: Stages
pairs:
- {name: own, recipe: recipe.yaml, conllu: text.conllu,
   pruning: {updates: 3, encoder_keep: [1], keep_by: [lrp]}}
- {name: known, recipe: recipe.yaml, run: run, conllu: text.conllu,
   set: [data.corpus=builtin, data.folder=null, data.pairs=300]}
analysis: {rank_sentences: 3, role_sentences: 4, score_sentences: 3}
"""

FAMILIES = ("m2m100", "bart", "mbart", "t5", "bert", "roberta", "xlm_roberta", "distilbert")

Call = Callable[..., int]
Words = tuple[str, ...]


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
        rows = [
            f"{i}\t{word}\t{word}\tNOUN\t_\t_\t{0 if i == 1 else 1}\t"
            f"{'root' if i == 1 else 'nsubj'}\t_\t_"
            for i, word in enumerate(line.split(), start=1)
        ]
        trees.append(f"# text = {line}\n" + "\n".join(rows) + "\n\n")
    (folder / "text.conllu").write_text("".join(trees))
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "study.yaml").write_text(STUDY)
    (folder / "stages.yaml").write_text(STAGES)


def write_models(folder: Path) -> None:
    """Checkpoints of other toolkits, each with the options that its import needs."""
    import torch
    import transformers
    from family_checkpoints import Maker
    from marian_checkpoints import make_marian, train_sentencepiece
    from safetensors.torch import load_file

    from headcount.data.builtin import generate
    from headcount.interop.importing import quieten

    quieten()
    pairs = [(sentence.text, french) for sentence, french in generate(300)]
    models = tuple(train_sentencepiece(side, vocab_size=120) for side in zip(*pairs, strict=True))
    make_marian(transformers, models, folder / "marian")
    make_marian(transformers, models, folder / "separate", separate=True)
    pickled = shutil.copytree(folder / "marian", folder / "pickled")
    weights = load_file(pickled / "model.safetensors")
    torch.save(weights, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    maker = Maker(transformers, [side for pair in pairs for side in pair], models[0])
    for family in FAMILIES:
        made = maker.make(family, folder / family, seed=3)
        flags = {f"--{name.replace('_', '-')}": value for name, value in made.options.items()}
        words = [word for flag, value in flags.items() if value for word in (flag, value)]
        (folder / family / "options").write_text("\n".join(words))


def import_once(world: Path) -> None:
    """Import each model in this process, for what `transformers` then has imported of itself."""
    from headcount.cli import app

    for model in ("marian", *FAMILIES):
        with (
            tempfile.TemporaryDirectory() as scratch,
            suppress(SystemExit),
            redirect_stdout(io.StringIO()),
        ):
            words = list(import_words(world, model))
            words[1:4] = [str(world / model), "--out", f"{scratch}/run"]
            app(words, standalone_mode=False)


def import_words(world: Path, model: str) -> Words:
    """How a model of the world is imported."""
    options = world / model / "options"
    more = options.read_text().split("\n") if options.exists() else []
    return ("import", model, "--out", "new", "--quiet", *filter(None, more))


def build(folder: Path, call: Call, small: bool = False) -> None:
    """Make the world in `folder`; `call(folder, *arguments)` runs headcount there.

    A small one has no study, no sweep and no models of other toolkits.
    """
    write_text_files(folder)
    if not small:
        write_models(folder)
    steps = [
        ("train", "recipe.yaml", "--out", "run", "--quiet"),
        ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet"),
        ("roles", "run", "--src", "text.en", "--conllu", "text.conllu", "--quiet"),
        ("prune", "run", "--train", "corpus", "--out", "pruned", "--keep", "1", "--quiet",
         "--updates", "3", "--batch-tokens", "60"),
        ("study", "study.yaml", "--out", "study", "--quiet"),
        ("prune-sweep", *SWEEP, "--out", "sweep"),
        ("export", "run", "--to", "transformers", "--out", "exported", "--quiet"),
    ]  # fmt: skip
    for step in steps[:4] if small else steps:
        code = call(folder, *step)
        if code != 0:
            raise RuntimeError(f"headcount {' '.join(step)} ended with {code}")


PRUNE = ("run", "--train", "corpus", "--keep", "1", "--updates", "3", "--batch-tokens", "60",
         "--quiet")  # fmt: skip
PRUNINGS = {  # one of each kind of method: each has its own state
    "prune": PRUNE,
    "prune by score": (*PRUNE, "--by", "lrp"),
    "prune by penalty": ("run", "--train", "corpus", "--penalty", "0.02", *PRUNE[5:]),
}
SWEEP = ("run", "--train", "corpus", "--keep", "1,2", "--updates", "2", "--batch-tokens", "60",
         "--quiet")  # fmt: skip
BY_SCORE = ("prune", "run", "--train", "corpus", "--out", "new", "--by", "confidence", "--keep",
            "1", "--no-finetune")  # fmt: skip
TRAIN = ("train", "recipe.yaml", "--out", "new", "--quiet")
TRANSLATE = ("translate", "run", "--input", "text.en", "--output", "new", "--quiet")
RANK = ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet")
ROLES = ("roles", "run", "--src", "text.en", "--conllu", "text.conllu", "--quiet")
SCORE = ("score", "run", "--src", "text.en", "--ref", "text.fr", "--output", "new",
         "--resamples", "10", "--quiet")  # fmt: skip
ATTRIBUTE = ("attribute", "run", "--src", "text.en", "--out", "new", "--quiet")
OWN = ("data", "own", "--from", "corpus", "--pair", "en-fr", "--out", "new", "--quiet")
BUILTIN = ("data", "builtin", "--pairs", "300", "--out", "new", "--quiet")
STUDIED = ("study", "study.yaml", "--out", "new", "--quiet")
STAGED = ("study", "stages.yaml", "--out", "new", "--quiet")
STAGED_AS = {  # a stage of each kind
    "data": "known/data", "adopt": "known/full", "train": "own/full", "score": "own/full/score",
    "rank": "own/full/rank", "roles": "own/full/roles", "prune": "own/enc-keep-1-lrp",
    "bench": "bench", "report": "report",
}  # fmt: skip
BENCH = ("bench", "run", "pruned", "--src", "text.en", "--rounds", "1", "--sentences", "2",
         "--singles", "1")  # fmt: skip


def export_words(to: str, run: str = "run") -> Words:
    return ("export", run, "--to", to, "--out", "new", "--quiet")


EXPORTS = ("transformers", "ctranslate2", "onnx", "marian")

# Commands that read a file of some kind, tried on mutations of it.
READERS: dict[str, list[Words]] = {
    "recipe.yaml": [TRAIN, (*TRAIN[:2], "--estimate")],
    "study.yaml": [(*STUDIED, "--dry-run")],
    "text.en": [TRANSLATE, SCORE, (*RANK, "--by", "confidence"), ATTRIBUTE, BENCH],
    "text.conllu": [("roles", "run", "--conllu", "text.conllu")],
    "corpus/train.*": [TRAIN, OWN],
    "corpus/prepared/*/*": [TRAIN],
    "run/*": [
        TRANSLATE, (*RANK, "--by", "lrp,confidence"), ROLES, BY_SCORE, SCORE, ATTRIBUTE, BENCH,
        ("train", "--resume", "run", "--quiet"), *map(export_words, EXPORTS),
    ],
    "run/checkpoints/*/*": [("train", "--resume", "run", "--quiet")],
    "run/analysis/*": [(*RANK, "--by", "confidence"), (*BY_SCORE, "--by", "lrp"), ROLES,
                       ("report", "run", "--quiet")],
    "pruned/*": [
        ("prune", *PRUNE, "--out", "pruned", "--resume"),
        ("translate", "pruned", "--input", "text.en", "--output", "new"),
        ("train", "--resume", "pruned", "--quiet"), export_words("ctranslate2", "pruned"),
    ],
    "sweep/**/*": [("prune-sweep", *SWEEP, "--out", "sweep")],
    "study/*": [("report", "study", "--quiet"), ("study", "study.yaml", "--out", "study")],
    "study/stages/*.json": [("study", "study.yaml", "--out", "study", "--quiet")],
    "study/scores/*": [("report", "study", "--quiet"), ("study", "study.yaml", "--out", "study")],
    "study/runs/*/*": [("report", "study", "--quiet")],
    "study/runs/*/analysis/*": [("report", "study", "--quiet")],
    "exported/*": [("import", "exported", "--out", "new", "--languages", "en-fr")],
    "marian/*": [],  # imported as their options say
    "separate/*": [],
    "pickled/*": [],
    **{f"{family}/*": [] for family in FAMILIES},
}  # fmt: skip


@dataclass(frozen=True)
class Writer:
    """A command that writes: how to begin, how to continue where `new` exists, what it makes."""

    begin: Words
    go_on: Words
    makes: str


def whole(words: Words, makes: str = "new") -> Writer:
    """A command that makes all or nothing, and refuses to replace what is there."""
    return Writer(words, (), makes)


def again(words: Words, makes: str) -> Writer:
    """A command whose way to continue is to begin again."""
    return Writer(words, words, makes)


def resumed(words: Words) -> Writer:
    """A command that continues with `--resume`."""
    return Writer(words, (*words, "--resume"), "new")


# For kills, full disks, two at once and clocks that jump.
WRITERS: dict[str, Writer] = {
    "train": resumed(TRAIN),
    **{name: resumed(("prune", *words, "--out", "new")) for name, words in PRUNINGS.items()},
    "prune-sweep": again(("prune-sweep", *SWEEP, "--out", "new"), "new"),
    "rank": again(RANK, "run/analysis"),
    "roles": again(ROLES, "run/analysis"),
    "translate": again(TRANSLATE, "new"),
    "score": again(SCORE, "new"),
    "attribute": again(ATTRIBUTE, "new"),
    "data own": again(OWN, "new"),
    "data builtin": again(BUILTIN, "new"),
    "report": again(("report", "run", "--out", "new", "--quiet"), "new"),
    "import": whole(("import", "marian", "--out", "new", "--quiet")),
    **{f"export {to}": whole(export_words(to)) for to in EXPORTS[:3]},
    **{
        f"study {kind}": again((*STAGED, "--only", name), "new") for kind, name in STAGED_AS.items()
    },
}


SMALL = ("train", "prune", "rank", "roles", "translate", "score", "data own")  # their writers


def copy_for(world: Path, place: Path, words: Words, pattern: str = "") -> None:
    """Copy what a command needs of the world: all single files, and the folders that it names."""
    named = {word.split("/")[0] for word in (*words, pattern)} | {"corpus"}
    named |= {"run"} if "stages.yaml" in words else set()
    place.mkdir()
    for entry in os.scandir(world):
        if entry.is_dir() and entry.name in named:
            shutil.copytree(entry.path, place / entry.name, symlinks=True)
        elif entry.is_file():
            shutil.copy2(entry.path, place / entry.name)
