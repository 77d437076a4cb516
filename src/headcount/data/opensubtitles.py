"""OpenSubtitles as OPUS publishes it: one XML file per film and language, and one with the links.

The paper keeps links whose subtitles overlap in time by at least 0.9 (App. B.1). A link names the
sentences of both sides, "1 2;7": they are joined. Everything is read in one pass, and at any time
only the two documents of one film are in memory.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from headcount.data.fetch import sha256_of
from headcount.data.pairs import LEAST_OVERLAP, KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.progress import Progress


def opensubtitles_source(
    origin: Path | None, pair: tuple[str, str] | None, overlap: float = LEAST_OVERLAP
) -> Source:
    """Subtitle pairs out of a folder with OPUS's unpacked files."""
    if origin is None or pair is None:
        raise UserError(
            "OpenSubtitles is read from files that you provide.",
            "Add --from FOLDER (OPUS's sentence and alignment XML) and --pair, e.g. en-ru.",
        )
    if not 0 <= overlap <= 1:
        raise UserError(f"An overlap of {overlap} is not possible.", "Give one from 0 to 1.")
    links, swapped = find_alignment(origin, pair)

    def read(progress: Progress) -> Iterator[Pair]:
        for linked in read_links(links, origin, overlap, progress):
            yield linked._replace(source=linked.target, target=linked.source) if swapped else linked

    return Source(
        name=OPENSUBTITLES.name,
        description=f"OpenSubtitles in OPUS form, aligned by {links.name}",
        licence=OPENSUBTITLES.licence,
        attribution="OpenSubtitles (opensubtitles.org), OPUS; Lison and Tiedemann (2016)",
        languages=pair,
        inputs={links.name: sha256_of(links)},
        read=read,
        options={"overlap": overlap},
    )


def find_alignment(origin: Path, pair: tuple[str, str]) -> tuple[Path, bool]:
    """The alignment file of a folder, and whether it names the languages the other way round."""
    if not origin.is_dir():
        raise UserError(f"{origin} is not a folder.", "Give the folder of OPUS's unpacked files.")
    for first, second in (pair, pair[::-1]):
        for ending in (".xml", ".xml.gz"):
            files = sorted(origin.rglob(f"{first}-{second}{ending}"))
            if files:
                return files[0], (first, second) != pair
    name = f"{'-'.join(sorted(pair))}.xml.gz"
    raise UserError(
        f"There is no alignment file {name} under {origin}.", "Check --from and --pair."
    )


def read_links(alignment: Path, origin: Path, overlap: float, progress: Progress) -> Iterator[Pair]:
    """The pairs that an alignment file links, film by film."""
    source: dict[str, str] | None = None
    target: dict[str, str] | None = None
    films = missing = 0
    first_missing = ""
    for event, element in _events(alignment, ("linkGrp", "link")):
        if element.tag == "linkGrp" and event == "start":
            films += 1
            progress("Reading films", films, None)
            names = [element.get(side, "") for side in ("fromDoc", "toDoc")]
            source, target = (_document(name, alignment, origin) for name in names)
            if source is None or target is None:
                missing += 1
                first_missing = first_missing or names[source is not None]
        elif element.tag == "link" and event == "end":
            yield _pair(element, source, target, overlap)
    if films and films == missing:
        raise UserError(
            f"None of the subtitle files that {alignment} names is under {origin} "
            f"(such as {first_missing}).",
            "Unpack both languages' archives of the same release there.",
        )


def _pair(
    link: ElementTree.Element,
    source: dict[str, str] | None,
    target: dict[str, str] | None,
    overlap: float,
) -> Pair:
    try:
        seen = float(link.get("overlap", "0"))
        left, right = link.get("xtargets", "").split(";")
    except ValueError:
        return faulty("malformed")
    if not left.strip() or not right.strip():
        return faulty("empty")  # a subtitle that the other side does not have
    if seen < overlap:
        return faulty("low overlap")
    if source is None or target is None:
        return faulty("malformed")
    try:
        return Pair(_joined(source, left), _joined(target, right))
    except KeyError:
        return faulty("malformed")


def _joined(sentences: dict[str, str], names: str) -> str:
    return " ".join(sentences[name] for name in names.split())


def _document(name: str, alignment: Path, origin: Path) -> dict[str, str] | None:
    """A film's sentences by id, or None where its file is missing.

    OPUS's archives unpack to OpenSubtitles/raw/en/... or .../xml/en/..., while links name only
    en/...; the file may be compressed or not, regardless of the link.
    """
    plain = name.removesuffix(".gz")
    for folder in (origin, *alignment.parents):
        for inner in ("", "raw", "xml", "OpenSubtitles/raw", "OpenSubtitles/xml"):
            for ending in ("", ".gz"):
                path = folder / inner / (plain + ending)
                if path.is_file():
                    return read_sentences(path)
        if folder == origin.parent:
            break
    return None


def read_sentences(path: Path) -> dict[str, str]:
    """The sentences of one subtitle file by id: raw text, or its words with spaces between."""
    sentences: dict[str, str] = {}
    for event, element in _events(path, ("s",)):
        if event == "end":
            words = [word.text or "" for word in element.iter("w")]
            text = " ".join(words) if words else "".join(element.itertext())
            sentences[element.get("id", "")] = " ".join(text.split())
    return sentences


def _events(path: Path, tags: tuple[str, ...]) -> Iterator[tuple[str, ElementTree.Element]]:
    """Starts and ends of elements in a file of any size; elements are freed once read."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as handle:
        try:
            open_elements: list[ElementTree.Element] = []
            for event, element in ElementTree.iterparse(handle, ("start", "end")):
                if event == "start":
                    open_elements.append(element)
                if element.tag in tags:
                    yield event, element
                if event == "end":
                    open_elements.pop()
                    if open_elements and not any(e.tag == "s" for e in open_elements):
                        open_elements[-1].remove(element)
        except (ElementTree.ParseError, gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path} is not sound XML ({error}).", "Unpack it again.") from error


OPENSUBTITLES = KnownCorpus(
    name="opensubtitles",
    help="OPUS's XML files, which you provide",
    licence="see opensubtitles.org; distributed by OPUS for research",
    open=lambda request: opensubtitles_source(request.origin, request.languages, request.overlap),
    needs="add --from and --pair",
)
