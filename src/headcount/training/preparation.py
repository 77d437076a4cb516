"""From a recipe to token shards: find or fetch the corpus, train BPE, encode."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headcount.config import Config, DataConfig, TrainingConfig
from headcount.data.cleaning import spread
from headcount.data.corpora import cached_corpus, corpus_cache
from headcount.data.corpus_folder import Corpus, corpus_of_run, load_corpus
from headcount.data.fetch import cache_folder
from headcount.data.mix import Part, check_parts, mix_corpora
from headcount.data.shards import Shards, prepare
from headcount.data.tokenizer import Tokenizer
from headcount.distribution import Workers
from headcount.errors import UserError
from headcount.files import TextFile, atomic_folder, one_at_a_time, read_json, write_json
from headcount.progress import Progress
from headcount.role.specialisation import Watched, parses_beside
from headcount.run import SOURCE_TOKENIZER, TARGET_TOKENIZER
from headcount.training.metrics import HeldOut

TRAINED_ON = "trained_on.json"

SIDES = ("source", "target")


@dataclass(frozen=True)
class Prepared:
    """A corpus ready for training."""

    corpus: Corpus
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    train: Shards
    dev: HeldOut
    domains: Mapping[str, HeldOut] = field(default_factory=dict)
    """For a mix of corpora: the dev set of each."""

    def digest(self) -> dict[str, list[str]]:
        """Hashes of the text and tokenizers that a run is trained with."""
        train, dev = self.train.recipe, self.dev.shards.recipe
        return {
            "train": [train.source_text, train.target_text],
            "dev": [dev.source_text, dev.target_text],
            "tokenizers": [train.source_tokenizer, train.target_tokenizer],
        }


def check_text(run: Path, prepared: Prepared) -> None:
    """Refuse to resume a run whose text has changed since it was begun.

    Runs of earlier versions have no record of their text and are not checked.
    """
    path = run / TRAINED_ON
    if not path.is_file():
        return
    before, now = read_json(path), prepared.digest()
    for name in now:
        if not isinstance(before, dict) or before.get(name) != now[name]:
            what = "The tokenizers" if name == "tokenizers" else f"The {name} text"
            raise UserError(
                f"{what} of {run} changed since it was begun (corpus: {prepared.corpus.folder}).",
                "Restore the text to resume, or start a new training with another --out.",
            )


BEGUN_FROM = "begun_from"


def record_text(run: Path, prepared: Prepared, begun: Path | None) -> None:
    """Write down what a run is trained on, for `check_text`, and which run it began with."""
    origin = {} if begun is None else {BEGUN_FROM: str(begun.absolute())}
    write_json(run / TRAINED_ON, prepared.digest() | origin)


def begun_from(run: Path) -> Path | None:
    """The run that this one began with, for one that was stopped before its first checkpoint."""
    path = run / TRAINED_ON
    stored = read_json(path) if path.is_file() else None
    origin = stored.get(BEGUN_FROM) if isinstance(stored, dict) else None
    return Path(origin) if isinstance(origin, str) else None


def with_absolute_folder(config: Config) -> Config:
    """The same recipe with absolute folders, so that it works from any working folder."""
    sections = {"data": config.data, "training": config.training}
    for section, key in (("data", "folder"), ("training", "teacher")):
        folder = getattr(sections[section], key)
        if folder is not None and folder.exists():
            absolute = sections[section].model_copy(update={key: folder.absolute()})
            config = config.model_copy(update={section: absolute})
    return config


def _check_language(folder: Path, key: str, language: str) -> None:
    """Explain a missing side: most often the recipe is for other languages."""
    names = (f"train.{language}", f"train.{language}.gz")
    if folder.is_dir() and not any((folder / name).is_file() for name in names):
        there = sorted(path.name for path in folder.glob("train.*")) or ["no train.* at all"]
        raise UserError(
            f"{folder} has no train.{language[:100]} (it has {', '.join(there[:5])}).",
            f"Set data.{key} to the language of your files: --set data.{key}=...",
        )


def check_corpora(config: DataConfig) -> None:
    """Refuse a list of corpora that cannot work: nothing is fetched or written for it."""
    if config.folder is None and not isinstance(config.corpus, str | None):
        parts = [Part(part.name, part.share) for part in config.parts]
        check_parts(parts, f"{config.source}-{config.target}")


def find_corpus(config: DataConfig, progress: Progress) -> Corpus:
    """The folder that a recipe names, or its known corpus, fetched where it is not there yet."""
    pair = f"{config.source}-{config.target}"
    if config.folder is not None and config.source == config.target:
        return corpus_of_run(config.folder, config.source, config.target)
    if config.folder is not None:
        for key, language in (("source", config.source), ("target", config.target)):
            _check_language(config.folder, key, language)
        return load_corpus(config.folder, pair, check=False)
    if config.corpus is None:
        raise UserError("The recipe names no data.", "Set data.folder or data.corpus.")
    if isinstance(config.corpus, str):
        return cached_corpus(config.corpus, pair, config.pairs, progress)
    check_corpora(config)
    parts = [Part(part.name, part.share) for part in config.parts]
    name = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    folder = corpus_cache(f"mix-{name}", pair, config.pairs)
    with one_at_a_time(folder.with_name(f".{folder.name}.lock")):
        return mix_corpora(parts, folder, pair, config.pairs, progress=progress)


def prepare_training(
    data: DataConfig,
    training: TrainingConfig,
    progress: Progress,
    tokenizers: Path | None = None,
    sides: Sequence[str] = SIDES,
) -> Prepared:
    """Everything that training reads, prepared once and kept beside the corpus.

    `tokenizers` is a folder whose tokenisers are to be used (a run's, when it is trained on) for
    the given sides; others are learned from the text.
    Trainings that begin at the same time on the same corpus wait for the first one to make it.
    """
    corpus = find_corpus(data, progress)
    folder = _writable(corpus)
    with one_at_a_time(folder / ".lock"):
        existing = {} if tokenizers is None else dict.fromkeys(sides, tokenizers)
        return _prepare(corpus, folder, data, training, progress, existing)


def _prepare(
    corpus: Corpus,
    folder: Path,
    data: DataConfig,
    training: TrainingConfig,
    progress: Progress,
    tokenizers: Mapping[str, Path],
) -> Prepared:
    source, target = _tokenizers(corpus, data, folder, progress, tokenizers)
    key = hashlib.sha256((source.fingerprint() + target.fingerprint()).encode()).hexdigest()[:16]

    def shards(split: str) -> Shards:
        return prepare(
            corpus.path(split, "source"),
            corpus.path(split, "target"),
            source,
            target,
            folder / f"{key}-{data.max_length}-{split}",
            max_length=data.max_length,
            progress=lambda done, total: progress(f"Encoding {split}", done, total),
        )

    held_out = shards("dev")  # before its text is paired: it says where sides are unequal
    if not len(held_out):
        raise UserError(
            f"{corpus.path('dev', 'source')} has no pair of at most {data.max_length} tokens each.",
            "Give held-out pairs, or raise data.max_length.",
        )
    scored = spread(list(corpus.pairs("dev")), training.bleu_sentences)
    sources, references = [pair[0] for pair in scored], [pair[1] for pair in scored]
    parses = parses_beside(corpus.path("dev", "source")) if training.watch_heads else None
    parsed = None if parses is None else Watched.parsed(parses, source, data.max_length + 1)
    dev = HeldOut(held_out, training.dev_sentences, sources, references, parsed)
    each = max(1, training.dev_sentences // max(1, len(corpus.domains)))
    domains = {name: HeldOut(shards(f"dev.{name}"), each) for name in corpus.domains}
    return Prepared(corpus, source, target, shards("train"), dev, domains)


def prepare_together(
    workers: Workers,
    data: DataConfig,
    training: TrainingConfig,
    progress: Progress,
    tokenizers: Path | None = None,
    sides: Sequence[str] = SIDES,
) -> Prepared:
    """`prepare_training` by several workers: the leader prepares, the others load the result."""
    if not workers.leader:
        workers.wait()
    prepared = prepare_training(data, training, progress, tokenizers, sides)
    if workers.leader:
        workers.wait()
    return prepared


def _writable(corpus: Corpus) -> Path:
    """Where prepared data is kept: beside the corpus, or in the cache where that is read-only."""
    beside = corpus.folder / "prepared"
    with suppress(OSError):
        beside.mkdir(exist_ok=True)
    if os.access(beside, os.W_OK):
        return beside
    name = hashlib.sha256(str(corpus.folder.resolve()).encode()).hexdigest()[:16]
    return cache_folder() / "prepared" / name


def _tokenizers(
    corpus: Corpus,
    data: DataConfig,
    folder: Path,
    progress: Progress,
    existing: Mapping[str, Path],
) -> tuple[Tokenizer, Tokenizer]:
    files = (SOURCE_TOKENIZER, TARGET_TOKENIZER)
    sizes = (data.source_vocabulary, data.target_vocabulary)
    tokenizers: list[Tokenizer] = []
    for number, (side, file, size) in enumerate(zip(SIDES, files, sizes, strict=True)):
        if side in existing:
            tokenizers.append(Tokenizer.load(existing[side] / file))
            continue
        path = corpus.path("train", side)
        stat = path.stat()
        key = f"bpe-{path.name}-{size}-{stat.st_size}-{stat.st_mtime_ns}"
        if not (folder / key).is_dir():
            progress("Learning BPE", number, len(SIDES))
            with atomic_folder(folder / key) as partial:
                Tokenizer.train(TextFile(path), size).save(partial / "tokenizer.json")
        tokenizers.append(Tokenizer.load(folder / key / "tokenizer.json"))
    if len(existing) < len(SIDES):
        progress("Learning BPE", len(SIDES), len(SIDES))
    return tokenizers[0], tokenizers[1]
