"""The help pages of LibreOffice: long technical sentences in many languages, from Debian packages.

Pages have the same names in all languages and paragraphs the same ids, so paragraphs are aligned
with their translations exactly. Packages are downloaded and read, not installed.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

from headcount.data.fetch import cached, require_tools
from headcount.data.pairs import KnownCorpus, Pair, Source
from headcount.errors import UserError
from headcount.progress import Progress

LANGUAGES = {"ru": "ru", "de": "de", "fr": "fr", "zh": "zh-cn"}
"""Languages, and how the names of their packages end."""
_PAGE = re.compile(r"\./usr/share/libreoffice/help/[^/]+/(text/.+\.html)")
_PARAGRAPH = re.compile(r'<(p|h\d) id="((?:par|hd)_id\w+)"([^>]*)>(.*?)</\1>', re.DOTALL)
_CODE = re.compile(r'class="(?:\w*code\w*|image)"')  # program text and pictures

_BROKEN = re.compile(r"\[\S+ not found\]")  # an embedded section that was missing at build time
_LOOSE_STOP = re.compile(r"\s+([.,])(?=\s|$)")  # where a picture stood before a full stop


@dataclass(frozen=True)
class DebianPackage:
    """A package as apt would download it."""

    name: str
    filename: str
    sha256: str


def libreoffice_source(language: str) -> Source:
    """English help paragraphs and their translations into one language."""
    packages = [find_package(f"libreoffice-help-{name}") for name in ("en-us", LANGUAGES[language])]

    def read(progress: Progress) -> Iterator[Pair]:
        english, other = (_fetch(package) for package in packages)
        pages = dict(read_pages(english))
        for number, (name, paragraphs) in enumerate(read_pages(other), start=1):
            progress("Aligning pages", number, len(pages))
            yield from align_paragraphs(pages.get(name, {}), paragraphs)

    versions = ", ".join(package.filename for package in packages)
    return Source(
        name=LIBREOFFICE_HELP.name,
        description=f"LibreOffice help pages, paragraphs aligned by id, from Debian's {versions}",
        licence=LIBREOFFICE_HELP.licence,
        attribution="LibreOffice contributors (The Document Foundation)",
        languages=("en", language),
        inputs={package.filename: package.sha256 for package in packages},
        read=read,
    )


def find_package(name: str) -> DebianPackage:
    """What apt knows of a package; nothing is downloaded yet."""
    require_tools("libreoffice-help", "apt-get", "dpkg-deb")
    listed = subprocess.run(
        ["apt-get", "download", "--print-uris", name], capture_output=True, text=True, check=False
    )
    match = re.search(r"^'\S+' (\S+) \d+ SHA256:([0-9a-f]{64})", listed.stdout, re.MULTILINE)
    if listed.returncode or not match:
        raise UserError(
            f"apt does not know the package {name}.",
            "Run `apt-get update` as root first; the package is in Debian's main section.",
        )
    return DebianPackage(name, match.group(1), match.group(2))


def _fetch(package: DebianPackage) -> Path:
    return cached(package.filename, package.sha256, lambda path: _download(package, path))


def _download(package: DebianPackage, path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["apt-get", "download", package.name],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
        fetched = Path(folder) / package.filename
        if done.returncode or not fetched.is_file():
            raise UserError(
                f"apt-get could not download {package.name}.",
                "Check the network, run `apt-get update` as root, and try again.",
            )
        shutil.move(fetched, path)


def read_pages(package: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The pages of a help package by name, each with its paragraphs by id.

    The package's files are streamed through; nothing is unpacked to the disk.
    """
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as unpacking:
        try:
            with tarfile.open(fileobj=unpacking.stdout, mode="r|") as tar:
                for member in tar:
                    page = _PAGE.fullmatch(member.name)
                    handle = tar.extractfile(member) if page and member.isfile() else None
                    if page and handle:
                        yield page.group(1), read_paragraphs(handle.read().decode("utf-8"))
        except (tarfile.TarError, UnicodeDecodeError) as error:
            raise UserError(
                f"{package} is damaged ({error}).", "Remove it and try again."
            ) from error


def align_paragraphs(english: dict[str, str], other: dict[str, str]) -> Iterator[Pair]:
    """Paragraphs of one page that both languages have."""
    for name, text in english.items():
        if name in other:
            yield Pair(text, other[name])


def read_paragraphs(page: str) -> dict[str, str]:
    """The paragraphs and headings of a page by id, without program text."""
    paragraphs: dict[str, str] = {}
    for _, name, attributes, content in _PARAGRAPH.findall(page):
        if name not in paragraphs and not _CODE.search(attributes) and not _BROKEN.search(content):
            paragraphs[name] = _LOOSE_STOP.sub(r"\1", plain_text(content))
    return paragraphs


def plain_text(content: str) -> str:
    """The text of a paragraph's HTML as a reader sees it."""
    if "<" not in content:
        return html.unescape(content)
    parser = _TextOf()
    parser.feed(content)
    parser.close()
    return "".join(parser.parts[0])


class _TextOf(HTMLParser):
    """Collects text; of an inline switch between systems or programs only one variant is kept.

    A switch is `<span class="switchinline">` around one span per variant: the one with an id that
    begins with "default", else the first.
    """

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[list[str]] = [[]]  # the text, and that of every open variant
        self.open: list[str] = []  # what each open span is: "switch", "variant", "default", ""
        self.variants: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "br":
            self.parts[-1].append(" ")
        if tag != "span":
            return
        attributes = dict(attrs)
        if attributes.get("class") == "switchinline":
            self.open.append("switch")
            self.variants.append({})
        elif self.open and self.open[-1] == "switch":
            self.open.append(
                "default" if (attributes.get("id") or "").startswith("default") else "variant"
            )
            self.parts.append([])
        else:
            self.open.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag != "span" or not self.open:
            return
        kind = self.open.pop()
        if kind in ("default", "variant"):
            self.variants[-1].setdefault(kind, "".join(self.parts.pop()))
        elif kind == "switch":
            variants = self.variants.pop()
            self.parts[-1].append(variants.get("default", variants.get("variant", "")))

    def handle_data(self, data: str) -> None:
        if not (self.open and self.open[-1] == "switch"):  # white space between variants
            self.parts[-1].append(data)


LIBREOFFICE_HELP = KnownCorpus(
    name="libreoffice-help",
    help="long technical sentences, 20 000 to 35 000 pairs",
    licence="MPL-2.0",
    open=lambda request: libreoffice_source((request.languages or ("", ""))[1]),
    language_pairs=tuple(f"en-{language}" for language in LANGUAGES),
    needs="needs apt",
)
