"""The user's own parallel text: pairs of plain files or tab-separated ones, `.gz` too.

    mine.en + mine.ru          line N translates line N
    mine.tsv, mine.tsv.gz      source, tab, target [, more columns that are left alone]

In a folder every such pair of files is read. Files with train, dev (valid) or test in their names
keep that division; training pairs whose English sentence is also in dev or test are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from headcount.data.fetch import sha256_of
from headcount.data.pairs import KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.files import read_lines
from headcount.progress import Progress

_SPLIT_WORDS = {
    "train": "train", "training": "train",
    "dev": "dev", "valid": "dev", "validation": "dev",
    "test": "test",
}  # fmt: skip


def own_source(origin: Path | None, pair: tuple[str, str] | None) -> Source:
    """Pairs from a file or folder of the user's own."""
    if origin is None:
        raise UserError("Your own text has to be named.", "Add --from FOLDER or --from FILE.tsv.")
    if pair is None:
        raise UserError("The languages of your own text are not known.", "Add --pair, e.g. en-ru.")
    groups = find_files(origin, pair)
    files = sorted({path for group in groups for path in group})

    def read(progress: Progress) -> Iterator[Pair]:
        for number, group in enumerate(groups):
            progress("Reading files", number, len(groups))
            split = split_of(group[0])
            reader = read_tsv(group[0]) if len(group) == 1 else read_two(*group)
            yield from (found._replace(split=split) for found in reader)

    return Source(
        name=OWN.name,
        description=f"The user's own text: {', '.join(path.name for path in files)}",
        licence=OWN.licence,
        attribution="",
        languages=pair,
        inputs={path.name: sha256_of(path) for path in files},
        read=read,
    )


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
            found = by_name.get(partner, by_name.get(partner + ".gz"))
            if found is None:
                raise UserError(f"{path} has no {partner} beside it.", "Both sides are needed.")
            groups.append((path, found))
    tables = [p for name, p in by_name.items() if name.removesuffix(".gz").endswith(".tsv")]
    named = [path for path in tables if f"{pair[0]}-{pair[1]}" in _words(path)]
    groups += [(path,) for path in named or tables]
    if not groups:
        raise UserError(
            f"{origin} has neither files that end in .{pair[0]} and .{pair[1]} nor .tsv files.",
            "Check --from and --pair.",
        )
    return groups


def split_of(path: Path) -> str:
    """The split that a file name tells, or nothing."""
    words = re.split(r"[._-]", path.name.lower())
    return next((_SPLIT_WORDS[word] for word in words if word in _SPLIT_WORDS), "")


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
    open=lambda request: own_source(request.origin, request.languages),
    needs="add --from and --pair",
)
