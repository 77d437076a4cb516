"""The registry of corpora, every name that `data.corpus` accepts, and how each becomes a folder.

A corpus is one file beside this one, with its entry at the top, and its line here.

    corpus = fetch_corpus("tatoeba-en-fr", Path("data/tatoeba"))
    corpus.path("train", "source")

Reading is streamed and what is remembered of a pair are two 8-byte hashes and a label, so that
millions of pairs need a few hundred megabytes.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from headcount.data.builtin import BUILTIN
from headcount.data.cleaning import (
    DROPPED_AS,
    FILTERS,
    UNLABELLED,
    Labels,
    Limits,
    assign_splits,
    hash64,
    mark_duplicates,
    normalise,
    reason_to_drop,
    sample_train,
    split_key,
)
from headcount.data.corpus_folder import DESCRIPTION, Corpus, load_corpus
from headcount.data.debian_descriptions import DEBIAN_DESCRIPTIONS
from headcount.data.fetch import cache_folder, sha256_of
from headcount.data.libreoffice import LIBREOFFICE_HELP
from headcount.data.mtdata_source import MTDATA
from headcount.data.opensubtitles import OPENSUBTITLES
from headcount.data.pairs import LEAST_OVERLAP, SPLITS, KnownCorpus, Pair, Request, Source
from headcount.data.parallel_text import OWN
from headcount.data.tatoeba import TATOEBA
from headcount.errors import UserError
from headcount.files import atomic_folder, inside, one_at_a_time, owned, write_json
from headcount.progress import Progress, silent
from headcount.registry import Registry

CORPORA: Registry[KnownCorpus] = Registry(
    "corpus",
    [
        *TATOEBA,
        DEBIAN_DESCRIPTIONS,
        LIBREOFFICE_HELP,
        BUILTIN,
        OPENSUBTITLES,
        OWN,
        MTDATA,
    ],
)


def corpora_help() -> str:
    """One paragraph per corpus: name, what it is, languages, what it needs."""
    return "\n\n".join(
        f"- {corpus.name}: {corpus.help}"
        + (f" ({', '.join(corpus.language_pairs)})" if corpus.language_pairs else "")
        + (f"; {corpus.needs}" if corpus.needs else "")
        for corpus in CORPORA.values()
    )


FORMAT = 1
"""Increased when the same input would give a different folder."""

_EVERY = 5000  # pairs between two reports of progress


def fetch_corpus(
    name: str,
    out: Path,
    pair: str | None = None,
    pairs: int | None = None,
    *,
    seed: int = 0,
    origin: Path | None = None,
    overlap: float = LEAST_OVERLAP,
    datasets: tuple[str, ...] = (),
    splits: str = "",
    limits: Limits | None = None,
    progress: Progress = silent,
) -> Corpus:
    """Fetch, clean and split a corpus into `out`; a folder that already holds it is left alone.

    `pairs` samples that many training pairs; dev and test are the same with and without it.
    `origin` is the user's own file or folder (`own`, `opensubtitles`), `splits` says which of its
    files are what ("train=a,dev=b,test=c"), `overlap` is the least overlap in time of two
    subtitles (App. B.1), `datasets` are names for `mtdata`.
    """
    if pairs is not None and pairs < 1:
        raise UserError(f"--pairs {pairs} is not a number of pairs.", "Give 1 or more.")
    out = out.absolute()
    known = CORPORA.find(name)
    languages = known.choose_languages(pair)
    request = Request(languages, origin, pairs, seed, overlap, datasets, splits, progress)
    source = known.open(request)
    limits = limits or Limits()
    identity = _identity(source, pairs, seed, limits)
    if out.exists() and (out.is_file() or any(out.iterdir())):
        return existing_corpus(out, identity)
    with owned(out), atomic_folder(out) as folder:
        _build(source, folder, identity, pairs, seed, limits, progress)
    return load_corpus(out, check=False)


def cached_corpus(name: str, pair: str, pairs: int | None, progress: Progress) -> Corpus:
    """A known corpus in the cache, fetched where it is not there yet; one process at a time."""
    CORPORA.find(name)
    folder = corpus_cache(name, pair, pairs)
    with one_at_a_time(folder.with_name(f".{folder.name}.lock")):
        return fetch_corpus(name, folder, pair, pairs, progress=progress)


def corpus_cache(name: str, pair: str, pairs: int | None) -> Path:
    """Where the cache keeps a corpus: its name, number of pairs and languages tell it apart."""
    name = name if pairs is None else f"{name}-{pairs}"
    return cache_folder() / "corpora" / (name if pair in name else f"{name}-{pair}")


def _identity(source: Source, pairs: int | None, seed: int, limits: Limits) -> dict[str, Any]:
    """Everything that determines what a folder will hold."""
    return {
        "format": FORMAT,
        "name": source.name,
        "languages": {"source": source.languages[0], "target": source.languages[1]},
        "inputs": dict(source.inputs),
        "options": dict(source.options),
        "limits": asdict(limits),
        "pairs": pairs,
        "seed": seed,
    }


def existing_corpus(out: Path, identity: dict[str, Any]) -> Corpus:
    """The corpus of a folder that already holds what was asked for, else an error."""
    if (out / DESCRIPTION).is_file():
        corpus = load_corpus(out, check=False)
        same = all(corpus.description.get(key) == value for key, value in identity.items())
        files = corpus.description.get("files", {})
        if same and all(
            inside(out, name).is_file() and sha256_of(inside(out, name)) == sha
            for name, sha in files.items()
        ):
            return corpus
        problem = f"{out} already holds another or a changed corpus."
    else:
        problem = f"{out} is a file." if out.is_file() else f"{out} is not empty."
    raise UserError(problem, "Choose another --out, or remove it first.")


def _build(
    source: Source,
    folder: Path,
    identity: dict[str, Any],
    pairs: int | None,
    seed: int,
    limits: Limits,
    progress: Progress,
) -> None:
    spool = folder / "spool"
    collected = _collect(source, spool, limits, progress)
    pair_hashes = np.frombuffer(collected.pair_hashes, dtype=np.uint64)
    labels = np.frombuffer(collected.labels, dtype=np.int8).copy()
    if not len(labels):
        raise UserError(
            f"Not one of the {collected.read} pairs of {source.name} passed the filters "
            f"({_summary(collected.dropped)}).",
            "Check that the two files are the right ones and in the right order.",
        )
    mark_duplicates(pair_hashes, labels)
    assign_splits(np.frombuffer(collected.key_hashes, dtype=np.uint64), labels)
    if pairs is not None:
        sample_train(pair_hashes, labels, pairs, seed)
    for label, name in DROPPED_AS.items():
        collected.dropped[name] = int(np.count_nonzero(labels == label))
    _write_splits(source, spool, labels, collected.parts, folder, progress)
    spool.unlink()
    write_json(folder / DESCRIPTION, _description(source, folder, identity, collected, labels))


@dataclass
class _Collected:
    """What is remembered of the pairs that passed the filters: 17 bytes each.

    `parts` are the names of held-out sets that get files of their own, by pair number.
    """

    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    pair_hashes: array[int] = field(default_factory=lambda: array("Q"))
    key_hashes: array[int] = field(default_factory=lambda: array("Q"))
    labels: array[int] = field(default_factory=lambda: array("b"))
    parts: dict[int, str] = field(default_factory=dict)


def _collect(source: Source, spool: Path, limits: Limits, progress: Progress) -> _Collected:
    """First pass: normalise, filter, and keep the rest on disk until the splits are known."""
    collected = _Collected()
    english = next((i for i, name in enumerate(source.languages) if name in ("en", "eng")), 0)
    with spool.open("w", encoding="utf-8", newline="\n") as handle:
        for raw in source.read(progress):
            collected.read += 1
            if collected.read % _EVERY == 0:
                progress("Reading pairs", collected.read, None)
            pair = raw._replace(source=normalise(raw.source), target=normalise(raw.target))
            reason = reason_to_drop(pair, limits)
            if reason is not None:
                collected.dropped[reason] += 1
                continue
            if pair.part:
                collected.parts[len(collected.labels)] = pair.part
            line = f"{pair.source}\t{pair.target}"
            collected.pair_hashes.append(hash64(line))
            collected.key_hashes.append(hash64(split_key(pair[english])))
            collected.labels.append(SPLITS.index(pair.split) if pair.split else UNLABELLED)
            handle.write(f"{line}\t{json.dumps(pair.tree)}\n" if pair.tree else f"{line}\n")
    progress("Reading pairs", collected.read, collected.read)
    return collected


def _write_splits(
    source: Source,
    spool: Path,
    labels: Labels,
    parts: dict[int, str],
    folder: Path,
    progress: Progress,
) -> None:
    """Second pass: every kept pair goes to the files of its split, and of its set if it has one."""
    with ExitStack() as stack:
        files: dict[tuple[str, str], IO[str]] = {}

        def write(split: str, ending: str, text: str) -> None:
            if (split, ending) not in files:
                path = folder / f"{split}.{ending}"
                opened = path.open("w", encoding="utf-8", newline="\n")
                files[split, ending] = stack.enter_context(opened)
            files[split, ending].write(text)

        for number, (label, pair) in enumerate(zip(labels.tolist(), _spooled(spool), strict=True)):
            if number % _EVERY == 0:
                progress("Writing splits", number, len(labels))
            if label >= 0:
                for name in filter(None, (SPLITS[label], parts.get(number))):
                    write(name, source.languages[0], f"{pair.source}\n")
                    write(name, source.languages[1], f"{pair.target}\n")
                    if pair.tree:
                        write(name, "conllu", pair.tree)
    progress("Writing splits", len(labels), len(labels))


def _spooled(spool: Path) -> Iterator[Pair]:
    with spool.open(encoding="utf-8", newline="\n") as handle:
        for line in handle:
            source, target, *tree = line.rstrip("\n").split("\t")
            yield Pair(source, target, tree=json.loads(tree[0]) if tree else "")


def _description(
    source: Source,
    folder: Path,
    identity: dict[str, Any],
    collected: _Collected,
    labels: Labels,
) -> dict[str, Any]:
    counts = {split: int(np.count_nonzero(labels == i)) for i, split in enumerate(SPLITS)}
    return identity | {
        "source": source.description,
        "licence": source.licence,
        "attribution": source.attribution,
        "read": collected.read,
        "dropped": {name: collected.dropped[name] for name in FILTERS},
        "counts": counts,
        "files": {path.name: sha256_of(path) for path in sorted(folder.iterdir())},
    }


def _summary(dropped: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in dropped.items()) or "none was read"
