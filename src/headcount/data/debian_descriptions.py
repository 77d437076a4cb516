"""Debian's package descriptions and their translations: technical prose, one to a few sentences.

apt can fetch the descriptions of all packages in many languages (`Translation-en`,
`Translation-fr`). A translation names the MD5 sum of the English description that it translates,
so the two are joined reliably. They are divided into paragraphs, list items and
sentences; where the two languages have different numbers of paragraphs or items, these are left
out, and where the sentences of a paragraph differ in number it stays whole.

apt works in a temporary folder, with the machine's own archive and keys; the system's package
lists are not touched. Several releases are read together, as each has packages that the others
lack. What apt fetched is kept in the cache and its sha256 recorded, so that the corpus stays the
same until that folder is removed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from headcount.data.fetch import cache_folder, require_tools, sha256_of
from headcount.data.pairs import KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.files import atomic_folder, one_at_a_time, read_json, read_lines, write_json
from headcount.progress import Progress, silent

LANGUAGES = {"fr": "fr", "de": "de", "ru": "ru", "zh": "zh_CN"}
"""Languages, and what apt calls them."""

RELEASES = ("oldstable", "stable", "testing")
_CHECKSUMS = "sha256.json"

_APT_SETTINGS = """\
#clear Acquire::Languages;
#clear APT::Update;
Acquire::Languages {{ "en"; "{language}"; }};
Acquire::GzipIndexes "false";
Acquire::IndexTargets::deb::Packages::DefaultEnabled "false";
Acquire::IndexTargets::deb-src::Sources::DefaultEnabled "false";
Dir::State::lists "{folder}/lists";
Dir::Cache "{folder}/cache";
Dir::Etc::sourcelist "{folder}/sources.list";
Dir::Etc::sourceparts "-";
"""

_ITEM = re.compile(r"(?:[*+o•·—–-]|\d+[.)])\s+")
# A full stop ends a sentence where white space and a capital, a digit or an opening mark follow,
# unless it stands behind a single letter ("e.g.", "z. B.") or another abbreviation.
_SENTENCE_END = re.compile(
    r"[.!?…][\"”’)]*(?:\s?»)?\s+(?=[^\W\d_a-zß-ÿа-яё]|[\d\"“„«(])|[。！？]+[”’）]*\s*(?=.)"
)
_CHINESE = re.compile("[一-鿿]")
_WIDE = re.compile("[一-鿿　-〿！-｠]")  # also Chinese punctuation: no space stands beside it
_ABBREVIATION = re.compile(
    r"(?:\b[^\W\d_]|\b(?:approx|bzw|ca|cf|Dr|evtl|ex|incl|inkl|Mr|Mrs|No|resp|St|sog|usw|vs))\.$"
)


def descriptions_source(language: str, progress: Progress = silent) -> Source:
    """English package descriptions and their translations into one language."""
    translated = LANGUAGES[language]
    lists = fetch_lists(translated, progress)

    def read(progress: Progress) -> Iterator[Pair]:
        english, other = (
            read_descriptions(path for path in lists if path.name.endswith(f"-{name}"))
            for name in ("en", translated)
        )
        for number, (md5, translation) in enumerate(other.items()):
            if number % 1000 == 0:
                progress("Aligning descriptions", number, len(other))
            if md5 in english:
                yield from align_descriptions(english[md5], translation)
            else:  # of a package that is no longer there
                yield faulty("unaligned")

    return Source(
        name=DEBIAN_DESCRIPTIONS.name,
        description=f"Package descriptions from apt: {', '.join(path.name for path in lists)}",
        licence=DEBIAN_DESCRIPTIONS.licence,
        attribution="Debian package maintainers; the Debian Description Translation Project",
        languages=("en", language),
        inputs={path.name: sha256_of(path) for path in lists},
        read=read,
    )


def fetch_lists(language: str, progress: Progress = silent) -> list[Path]:
    """The lists of descriptions in English and another language, fetched where they are missing."""
    folder = cache_folder() / "debian-descriptions" / f"en-{language}"
    with one_at_a_time(folder.with_name(f".en-{language}.lock")):
        if not _is_whole(folder):
            require_tools("debian-descriptions", "apt-get")
            shutil.rmtree(folder, ignore_errors=True)
            progress("Fetching descriptions with apt", 0, None)
            with atomic_folder(folder) as partial:
                _update(language, partial)
            progress("Fetching descriptions with apt", 1, 1)
    return sorted(path for path in folder.iterdir() if path.name != _CHECKSUMS)


def _is_whole(folder: Path) -> bool:
    if not (folder / _CHECKSUMS).is_file():
        return False
    paths = [path for path in folder.iterdir() if path.name != _CHECKSUMS]
    return bool(read_json(folder / _CHECKSUMS) == {path.name: sha256_of(path) for path in paths})


def _update(language: str, out: Path) -> None:
    """`apt-get update` in a folder of its own; the lists are copied to `out`."""
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        state.chmod(0o755)  # apt, run as root, downloads as a user without rights
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "cache").mkdir()
        (state / "sources.list").write_text(_sources())
        settings = state / "apt.conf"
        settings.write_text(_APT_SETTINGS.format(language=language, folder=state))
        _apt_get(f"-c={settings}", "update", "-q")
        columns = "$(FILENAME)\t$(RELEASE)\t$(LANGUAGE)"
        for line in _index_targets(columns, "Created-By: Translations", f"-c={settings}"):
            filename, release, of = line.split("\t")
            if release in RELEASES and of in ("en", language) and Path(filename).is_file():
                shutil.copyfile(filename, out / f"{release}-main-Translation-{of}")
    paths = sorted(out.iterdir())
    for wanted in ("en", language):
        if not any(path.name.endswith(f"-{wanted}") for path in paths):
            raise UserError(
                f"apt could not fetch the package descriptions in '{wanted}'.",
                "Check the network and that `apt-get update` works; nothing was kept.",
            )
    write_json(out / _CHECKSUMS, {path.name: sha256_of(path) for path in paths})


def _sources() -> str:
    """The machine's own Debian archive as a source of the main section of several releases."""
    columns = "$(ORIGIN)\t$(REPO_URI)\t$(SIGNED_BY)"
    for line in _index_targets(columns, "Created-By: Packages", "Component: main"):
        origin, archive, key = line.split("\t")
        if origin == "Debian" and "security" not in archive:
            options = f"[signed-by={key}] " if key and "$" not in key else ""
            return "".join(f"deb {options}{archive} {release} main\n" for release in RELEASES)
    raise UserError(
        "apt has no package list of a Debian archive on this machine.",
        "Run `apt-get update` as root on a Debian machine, or choose another corpus.",
    )


def _index_targets(columns: str, *arguments: str) -> list[str]:
    return _apt_get("indextargets", "--format", columns, *arguments).splitlines()


def _apt_get(*arguments: str) -> str:
    """apt-get's output. Its errors name hosts and are not repeated; missing lists show them."""
    command = ["apt-get", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def read_descriptions(paths: Iterable[Path]) -> dict[str, list[str]]:
    """Descriptions by the MD5 sum of the English one: the synopsis, then the lines below it."""
    descriptions: dict[str, list[str]] = {}
    for path in paths:
        md5, lines = "", None
        for line in read_lines(path):
            line = line.replace("⋅", " ")  # translators' sign for a no-break space
            if line.startswith(" ") and lines is not None:
                lines.append(line[1:])
            elif line.startswith("Description-md5:"):
                md5 = line.partition(":")[2].strip()
            elif line.startswith("Description-"):
                lines = descriptions.setdefault(md5, [])
                lines[:] = [line.partition(":")[2].strip()]
            else:
                lines = None
    return descriptions


def align_descriptions(english: Sequence[str], other: Sequence[str]) -> Iterator[Pair]:
    """The synopsis, and what can be aligned of the text below it."""
    yield Pair(english[0], other[0])
    left, right = paragraphs(english[1:]), paragraphs(other[1:])
    if len(left) != len(right):
        yield faulty("unaligned")
        return
    for items in zip(map(list_items, left), map(list_items, right), strict=True):
        if fit(*items):
            for item in zip(*items, strict=True):
                both = sentences(item[0]), sentences(item[1])
                pairs = zip(*both, strict=True) if fit(*both) else [item]
                yield from (Pair(*pair) for pair in pairs)
        else:
            yield faulty("unaligned")


def fit(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether two lists of texts could be translations of each other, judging by their lengths."""
    lengths = (sorted(map(_length, texts)) for texts in zip(left, right, strict=False))
    alike = all(longer + 15 <= 2 * (shorter + 15) for shorter, longer in lengths)
    return alike and len(left) == len(right)


def _length(text: str) -> int:
    """Letters; a Chinese character stands for about three."""
    return len(text) + 2 * len(_CHINESE.findall(text))


def paragraphs(lines: Sequence[str]) -> list[list[str]]:
    """Lines in paragraphs: a line with a single full stop stands between two of them."""
    blocks: list[list[str]] = [[]]
    for line in lines:
        if line.strip() in (".", ""):
            blocks.append([])
        else:
            blocks[-1].append(line)
    return [lines for lines in blocks if lines]


def list_items(lines: Sequence[str]) -> list[str]:
    """A paragraph as running text and list items, without bullets and indentation.

    Lines below an item belong to it where they are indented further than its bullet, or where
    neither is indented. Other indented lines stand alone, as they do on the screen.
    """
    items: list[str] = []
    least, most = 0, 0  # how far a line may be indented that belongs to the open item
    for line in lines:
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        bullet = _ITEM.match(text)
        if not bullet and items and least <= indent <= most:
            space = "" if _WIDE.search(items[-1][-1:]) and _WIDE.match(text) else " "
            items[-1] += f"{space}{text}"
            continue
        items.append(text[bullet.end() :] if bullet else text)
        if bullet:
            least, most = indent + 1 if indent else 0, 80
        else:
            least, most = 1 if indent else 0, 0
    return items


def sentences(text: str) -> list[str]:
    """A text cut behind each sentence."""
    cut, begin = [], 0
    for end in _SENTENCE_END.finditer(text):
        stop = end.start() + 1
        if not (text[end.start()] == "." and _ABBREVIATION.search(text[:stop])):
            cut.append(text[begin : end.end()].strip())
            begin = end.end()
    return [*cut, text[begin:].strip()]


DEBIAN_DESCRIPTIONS = KnownCorpus(
    name="debian-descriptions",
    help="technical prose of 13 words on average, 100 000 pairs in French",
    licence=(
        "no single one: descriptions are part of Debian's source packages and come under the free"
        " licence of each package's packaging (its debian/copyright)"
    ),
    open=lambda request: descriptions_source((request.languages or ("", ""))[1], request.progress),
    language_pairs=tuple(f"en-{language}" for language in LANGUAGES),
    needs="needs apt",
)
