"""The user's own parallel text: pairs of plain files or tab-separated ones, `.gz` too.

    mine.en + mine.ru          line N translates line N
    mine.tsv, mine.tsv.gz      source, tab, target [, further columns that are ignored]

In a folder every such pair of files is read. A file whose name has the word train, dev, val,
valid, validation, devtest or test in it keeps that division, unless `--splits` says otherwise.
Held-out sets are kept as they are, several test sets each in a file pair of its own as well;
training pairs whose English sentence is held out are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from headcount.data.fetch import sha256_of
from headcount.data.pairs import SPLITS, KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.progress import Progress

_SPLIT_WORDS = {
    "train": re.compile(r"train(ing)?\d*"),
    "dev": re.compile(r"(news)?dev(test|elopment)?\d*|val(id|idation)?\d*|development"),
    "test": re.compile(r"(news)?test\d*"),
}


def own_source(origin: Path | None, pair: tuple[str, str] | None, splits: str = "") -> Source:
    """Pairs from a file or folder of the user's own."""
    if origin is None:
        raise UserError("Where is your own text?", "Add --from FOLDER or --from FILE.tsv.")
    if pair is None:
        raise UserError("The languages of your own text are not known.", "Add --pair, e.g. en-ru.")
    groups = find_files(origin, pair)
    split_of_group = choose_splits([_stem(group[0], pair) for group in groups], splits)
    groups = [group for group in groups if _stem(group[0], pair) in split_of_group]
    files = sorted({path for group in groups for path in group})
    held_out = list(split_of_group.values())

    def read(progress: Progress) -> Iterator[Pair]:
        for number, group in enumerate(groups):
            progress("Reading files", number, len(groups))
            stem = _stem(group[0], pair)
            split = split_of_group[stem]
            several = split in ("dev", "test") and held_out.count(split) > 1
            own_file = f"{stem}.{stem}" if stem in SPLITS else stem
            reader = read_tsv(group[0]) if len(group) == 1 else read_two(*group)
            yield from (
                row._replace(split=split, part=own_file if several else "") for row in reader
            )

    return Source(
        name=OWN.name,
        description=f"The user's own text: {', '.join(path.name for path in files)}",
        licence=OWN.licence,
        attribution="",
        languages=pair,
        inputs={path.name: sha256_of(path) for path in files},
        read=read,
        options={
            "splits": {
                " + ".join(path.name for path in group): split_of_group[_stem(group[0], pair)]
                or "divided into train, dev and test"
                for group in groups
            }
        },
    )


def choose_splits(stems: list[str], splits: str = "") -> dict[str, str]:
    """What each pair of files is taken for: train, dev, test, or nothing ("": to be divided).

    `splits` is what the user says, "train=captions,dev=val,test=a,test=b"; files that it does not
    name are left out.
    """
    if not splits:
        return {stem: split_of(stem) for stem in stems}
    chosen: dict[str, str] = {}
    for text in splits.split(","):
        split, _, stem = text.strip().partition("=")
        if split not in SPLITS or stem not in stems or stem in chosen:
            raise UserError(
                f"--splits {text.strip()[:100]}: "
                + ("named twice." if stem in chosen else "no such split or no such file."),
                f"Write train=NAME,dev=NAME,test=NAME with names among {', '.join(stems)}.",
            )
        chosen[stem] = split
    if "train" not in chosen.values():
        raise UserError("--splits names no training text.", "Add train=NAME.")
    return chosen


def find_files(origin: Path, pair: tuple[str, str]) -> list[tuple[Path, ...]]:
    """What to read, in order: one TSV file, or the two plain files of the two languages.

    Where TSV files of a folder name a language pair, only those of the wanted one count.
    """
    if origin.is_file():
        return [(origin,)]
    if not origin.is_dir():
        raise UserError(f"{origin} does not exist.", "Check --from.")
    by_name = {path.name: path for path in sorted(origin.iterdir()) if path.is_file()}
    groups: list[tuple[Path, ...]] = []
    for name, path in by_name.items():
        plain = name.removesuffix(".gz")
        if plain.endswith(f".{pair[0]}"):
            partner = plain.removesuffix(pair[0]) + pair[1]
            other = by_name.get(partner, by_name.get(partner + ".gz"))
            if other is None:
                raise UserError(f"{path} has no {partner} beside it.", "Both sides are needed.")
            groups.append((path, other))
    tables = [p for name, p in by_name.items() if name.removesuffix(".gz").endswith(".tsv")]
    named = [path for path in tables if f"{pair[0]}-{pair[1]}" in _words(path)]
    groups += [(path,) for path in named or tables]
    if not groups:
        raise UserError(
            f"{origin} has neither files that end in .{pair[0]} and .{pair[1]} nor .tsv files.",
            "Check --from and --pair.",
        )
    return groups


def split_of(name: str) -> str:
    """The split that a file's name indicates, or nothing."""
    for word in re.split(r"[._-]", name.lower()):
        for split, pattern in _SPLIT_WORDS.items():
            if pattern.fullmatch(word):
                return split
    return ""


def _stem(path: Path, pair: tuple[str, str]) -> str:
    """A file's name without its language or format: "test_2016" of test_2016.en.gz."""
    name = path.name.removesuffix(".gz")
    return name.removesuffix(".tsv").removesuffix(f".{pair[0]}").removesuffix(f".{pair[1]}")


def read_tsv(path: Path) -> Iterator[Pair]:
    """The first two columns of a tab-separated file."""
    for line in read_lines(path):
        columns = line.split("\t")
        yield Pair(columns[0], columns[1]) if len(columns) > 1 else faulty("malformed")


def read_two(source: Path, target: Path) -> Iterator[Pair]:
    """Two files side by side; different numbers of lines are an error."""
    lines = read_lines(source), read_lines(target)
    for count, (left, right) in enumerate(zip_longest(*lines)):
        if left is None or right is None:
            more = 1 + sum(1 for _ in lines[1 if left is None else 0])
            sizes = (count, count + more) if left is None else (count + more, count)
            raise UserError(
                f"{source} has {sizes[0]} lines but {target} has {sizes[1]}.",
                "Line N of one file must translate line N of the other.",
            )
        yield Pair(left, right)


def _words(path: Path) -> list[str]:
    return re.split(r"[._]", path.name)


OWN = KnownCorpus(
    name="own",
    help="plain text or TSV files of your own",
    licence="unknown: the user's own text",
    open=lambda request: own_source(request.origin, request.languages, request.splits),
    needs="add --from and --pair",
)
