"""Several corpora as one: mixed for training, kept apart in dev and test, for results by domain.

    mix_corpora([Part("tatoeba-en-fr", 0.5), Part("debian-descriptions", 0.5)], out, "en-fr")

The folder has `train.*`, `dev.*` and `test.*` of all, and `dev.NAME.*` and `test.NAME.*` of each.
A sentence that is held out in one corpus is left out of the training text of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headcount.data.cleaning import (
    DROPPED_AS,
    DUPLICATE,
    HELD_OUT,
    TRAIN,
    Hashes,
    hash64,
    sample_train,
    split_key,
)
from headcount.data.corpora import CORPORA, FORMAT, cached_corpus, existing_corpus, fetch_corpus
from headcount.data.corpus_folder import DESCRIPTION, Corpus, load_corpus
from headcount.data.fetch import sha256_of
from headcount.data.pairs import LEAST_OVERLAP, parse_language_pair
from headcount.errors import UserError
from headcount.files import atomic_folder, write_json
from headcount.progress import Progress, silent

MIX = "mix"


@dataclass(frozen=True)
class Part:
    """A known corpus in a mix; `share` is its part of the training pairs, None for all it has."""

    name: str
    share: float | None = None


def parse_parts(text: str) -> list[Part]:
    """`tatoeba-en-fr,debian-descriptions`, or with shares: `tatoeba-en-fr=0.6,builtin=0.4`."""
    parts = []
    for item in text.split(","):
        name, equals, share = item.strip().partition("=")
        if not name:
            raise UserError(f"'{text}' has an empty name.", "Is there a comma too many?")
        try:
            parts.append(Part(name, float(share) if equals else None))
        except ValueError as error:
            raise UserError(f"'{item.strip()}': not a share.", "Write NAME=0.5.") from error
    return parts


def make_corpus(
    name: str,
    out: str | Path,
    pair: str | None = None,
    pairs: int | None = None,
    *,
    seed: int = 0,
    origin: str | Path | None = None,
    overlap: float = LEAST_OVERLAP,
    dataset: str | Iterable[str] = (),
    splits: str = "",
    progress: Progress = silent,
) -> Corpus:
    """Fetch a known corpus, mix several, or take your own text; check, clean and split it.

    Several corpora are written with commas between them."""
    if "," not in name and "=" not in name:
        own = None if origin is None else Path(origin)
        names = (dataset,) if isinstance(dataset, str) else tuple(dataset)
        return fetch_corpus(
            name, Path(out), pair, pairs, seed=seed, origin=own, overlap=overlap,
            datasets=names, splits=splits, progress=progress,
        )  # fmt: skip
    parts = parse_parts(name)
    return mix_corpora(
        parts, Path(out), pair or _only_pair(parts), pairs, seed=seed, progress=progress
    )


def _only_pair(parts: Sequence[Part]) -> str:
    """The language pair that all corpora of a list have, where it is the only one."""
    choices = [CORPORA.find(part.name).language_pairs for part in parts]
    common = [pair for pair in choices[0] if all(pair in some for some in choices)]
    if len(common) != 1:
        shown = " or ".join(common)
        raise UserError(
            "These corpora have several language pairs in common."
            if common
            else "These corpora have no language pair in common.",
            f"Add --pair {shown}." if common else "`headcount data --help` lists their pairs.",
        )
    return common[0]


def check_parts(parts: Sequence[Part], pair: str) -> None:
    """Refuse a list of corpora that cannot work, before anything is fetched."""
    names = [part.name for part in parts]
    for name in names:
        known = CORPORA.find(name)
        if names.count(name) > 1:
            raise UserError(f"The corpus {name} is listed twice.", "List each corpus once.")
        if not known.language_pairs:
            raise UserError(
                f"{name} needs options of its own and cannot be in a list of corpora.",
                "Make its folder with `headcount data` and use data.folder.",
            )
        known.choose_languages(pair)
    shares = [part.share for part in parts if part.share is not None]
    if not shares:
        return
    if len(shares) < len(parts):
        without = next(part.name for part in parts if part.share is None)
        raise UserError(f"{without} has no share.", "Give each corpus a share, or none of them.")
    for part, share in zip(parts, shares, strict=True):
        if not share > 0:
            raise UserError(
                f"{part.name} has a share of {share:g}.", "Give it more than 0, or leave it out."
            )
    if not abs(sum(shares) - 1) <= 1e-6:
        raise UserError(
            f"The shares {', '.join(f'{share:g}' for share in shares)} do not add up to 1.",
            "Each is the part of the training pairs that comes from its corpus, such as 0.25.",
        )


def mix_corpora(
    parts: Sequence[Part],
    out: Path,
    pair: str,
    pairs: int | None = None,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Corpus:
    """Fetch the corpora where they are missing and mix them into `out`.

    With shares the mix is as large as the corpora allow without repeating a pair, or has `pairs`
    training pairs. Without shares it has all pairs, or `pairs` of them all.
    """
    check_parts(parts, pair)
    if pairs is not None and pairs < 1:
        raise UserError(f"--pairs {pairs} is not a number of pairs.", "Give 1 or more.")
    out = out.absolute()
    corpora = {part.name: cached_corpus(part.name, pair, None, progress) for part in parts}
    languages = parse_language_pair(pair)
    identity = {
        "format": FORMAT,
        "name": MIX,
        "languages": {"source": languages[0], "target": languages[1]},
        "inputs": {name: corpus.digest() for name, corpus in corpora.items()},
        "options": {"shares": {part.name: part.share for part in parts}},
        "pairs": pairs,
        "seed": seed,
    }
    if out.exists() and (out.is_file() or any(out.iterdir())):
        return existing_corpus(out, identity)
    with atomic_folder(out) as folder:
        mixing = _Mixing(corpora, folder, progress)
        mixing.choose([part.share for part in parts], pairs, seed)
        mixing.write()
        write_json(folder / DESCRIPTION, identity | mixing.description())
    return load_corpus(out, check=False)


@dataclass
class _Mixing:
    """A mix while it is being built: a label for each training pair of each corpus."""

    corpora: dict[str, Corpus]
    folder: Path
    progress: Progress
    labels: list[np.ndarray] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def choose(self, shares: Sequence[float | None], pairs: int | None, seed: int) -> None:
        """Leave out what is held out anywhere, repeated, or more than a corpus's share."""
        held_out = np.unique(np.concatenate([_held_out(c) for c in self.corpora.values()]))
        seen = np.zeros(0, np.uint64)
        hashes: list[Hashes] = []
        for number, corpus in enumerate(self.corpora.values()):
            self.progress("Comparing corpora", number, len(self.corpora))
            pair_hashes, keys = _hashes(corpus)
            labels = np.full(len(keys), TRAIN, np.int8)
            labels[np.isin(pair_hashes, seen)] = DUPLICATE
            labels[np.isin(keys, held_out)] = HELD_OUT
            seen = np.concatenate((seen, pair_hashes))
            hashes.append(pair_hashes)
            self.labels.append(labels)
        available = [int(np.count_nonzero(labels == TRAIN)) for labels in self.labels]
        wanted = quotas(available, shares, pairs, list(self.corpora))
        for pair_hashes, labels, count in zip(hashes, self.labels, wanted, strict=True):
            sample_train(pair_hashes, labels, count, seed)

    def write(self) -> None:
        """Training pairs corpus by corpus; held-out pairs for all and for each corpus."""
        for number, (name, corpus) in enumerate(self.corpora.items()):
            self.progress("Writing the mix", number, len(self.corpora))
            self.counts[name] = Counter()
            for split in corpus.splits:
                names = (split,) if split == "train" else (split, f"{split}.{name}")
                kept = self.labels[number] == TRAIN if split == "train" else None
                chosen = _chosen(corpus, split, kept)
                self.counts[name][split] = self._append(names, corpus, chosen)
        self.progress("Writing the mix", len(self.corpora), len(self.corpora))

    def _append(
        self, names: tuple[str, ...], corpus: Corpus, pairs: Iterator[tuple[str, str]]
    ) -> int:
        count = 0
        with ExitStack() as stack:
            files = [
                [
                    stack.enter_context(open(path, "a", encoding="utf-8", newline="\n"))
                    for path in (self.folder / f"{name}.{side}" for side in corpus.languages)
                ]
                for name in names
            ]
            for pair in pairs:
                count += 1
                for sides in files:
                    for handle, text in zip(sides, pair, strict=True):
                        handle.write(f"{text}\n")
        return count

    def description(self) -> dict[str, Any]:
        """What `corpus.json` says beside the identity."""
        about = {name: corpus.description for name, corpus in self.corpora.items()}
        total = sum(self.counts.values(), Counter())
        labels = np.concatenate(self.labels)
        return {
            "source": "Mixed by headcount: " + ", ".join(self.corpora),
            "licence": "; ".join(f"{name}: {a.get('licence')}" for name, a in about.items()),
            "attribution": "; ".join(
                f"{name}: {a.get('attribution')}" for name, a in about.items()
            ),
            "read": len(labels) + total["dev"] + total["test"],
            "dropped": {
                name: int(np.count_nonzero(labels == label)) for label, name in DROPPED_AS.items()
            },
            "counts": {split: total[split] for split in ("train", "dev", "test")},
            "parts": {name: dict(counts) for name, counts in self.counts.items()},
            "files": {path.name: sha256_of(path) for path in sorted(self.folder.iterdir())},
        }


def quotas(
    available: Sequence[int],
    shares: Sequence[float | None],
    pairs: int | None,
    names: Sequence[str],
) -> list[int]:
    """How many training pairs each corpus gives; they add up to `pairs` where that is set."""
    total = sum(available)
    parts = [
        share if share is not None else n / total
        for share, n in zip(shares, available, strict=True)
    ]
    largest = min(n / part for n, part in zip(available, parts, strict=True) if part)
    wanted = largest if pairs is None else pairs
    counts = np.floor(np.asarray(parts) * wanted + 1e-6).astype(int)
    if pairs is not None:  # what rounding left over goes to the corpora that lost most by it
        lost = np.asarray(parts) * wanted - counts
        counts[np.argsort(-lost, kind="stable")[: pairs - int(counts.sum())]] += 1
    for name, count, n in zip(names, counts.tolist(), available, strict=True):
        if count > n:
            raise UserError(
                f"The mix needs {count} training pairs of {name}, which has {n}.",
                f"Ask for at most {int(largest)} pairs, or change the shares.",
            )
    return [int(count) for count in counts]


def _english(corpus: Corpus) -> int:
    return 1 if corpus.target_language in ("en", "eng") else 0


def _hashes(corpus: Corpus) -> tuple[Hashes, Hashes]:
    """Of the training pairs and of their English sentences, [pairs] each."""
    side = _english(corpus)
    both = [
        (hash64("\t".join(pair)), hash64(split_key(pair[side]))) for pair in corpus.pairs("train")
    ]
    table = np.asarray(both, dtype=np.uint64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _held_out(corpus: Corpus) -> Hashes:
    side = _english(corpus)
    keys = (
        hash64(split_key(pair[side]))
        for split in corpus.splits
        if split != "train"
        for pair in corpus.pairs(split)
    )
    return np.fromiter(keys, dtype=np.uint64)


def _chosen(corpus: Corpus, split: str, kept: np.ndarray | None) -> Iterator[tuple[str, str]]:
    for number, pair in enumerate(corpus.pairs(split)):
        if kept is None or kept[number]:
            yield pair
