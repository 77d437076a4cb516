"""Official WMT and OPUS corpora by name, through the `mtdata` library (an extra).

    headcount data mtdata --pair en-ru --dataset Statmt-news_commentary-16-eng-rus \\
        --dataset test=Statmt-newstest_enru-2015-eng-rus --out DIR
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from headcount.data.pairs import SPLITS, KnownCorpus, Pair, Source, faulty
from headcount.errors import UserError
from headcount.progress import Progress


def mtdata_source(pair: tuple[str, str] | None, datasets: tuple[str, ...]) -> Source:
    """One or more of mtdata's datasets; `dev=` or `test=` before a name holds it out."""
    if pair is None or not datasets:
        raise UserError(
            "mtdata needs to know which datasets to take.",
            "Add --pair and --dataset NAME (`mtdata list -l eng-rus` shows the names).",
        )
    library = _Library()
    wanted = [_parse(text) for text in datasets]
    entries = [(split, library.entry(name, pair)) for split, name in wanted]

    def read(progress: Progress) -> Iterator[Pair]:
        for number, (split, entry) in enumerate(entries):
            progress("Fetching datasets", number, len(entries))
            yield from library.read(entry, pair, split)

    cited = {key for _, entry in entries for key in entry.cite or ()}
    return Source(
        name=MTDATA.name,
        description=f"Through mtdata {library.version}: {', '.join(datasets)}",
        licence=MTDATA.licence,
        attribution=f"to be cited, by mtdata's keys: {', '.join(sorted(cited)) or 'none given'}",
        languages=pair,
        inputs=dict.fromkeys(datasets, f"mtdata {library.version}"),
        read=read,
    )


def _parse(text: str) -> tuple[str, str]:
    """`test=NAME` as a split and a name; a name alone is left to our own splits."""
    split, equals, name = text.partition("=")
    if not equals:
        return "", text
    if split not in SPLITS:
        raise UserError(f"'{split}' in --dataset {text} is not a split.", "Use dev= or test=.")
    return split, name


class _Library:
    """The parts of mtdata that are used, imported only when they are."""

    def __init__(self) -> None:
        try:
            self.package = import_module("mtdata")
        except ImportError as error:
            raise UserError(
                "The library mtdata is not installed.", "Run: pip install 'headcount[mtdata]'"
            ) from error
        logging.getLogger().setLevel(logging.WARNING)  # importing it sets the root logger to INFO
        self.version: str = self.package.__version__
        self.index = import_module("mtdata.index").INDEX
        self.dataset_id = import_module("mtdata.entry").DatasetId
        self.parser = import_module("mtdata.parser").Parser
        self.languages = import_module("mtdata.iso.bcp47")
        self.cache = import_module("mtdata.cache").Cache(self.package.cache_dir)

    def entry(self, name: str, pair: tuple[str, str]) -> Any:
        """mtdata's record of a dataset, of the wanted languages."""
        remedy = f"`mtdata list -l {'-'.join(pair)}` shows the names."
        try:
            wanted = self.dataset_id.parse(name)
        except Exception as error:  # mtdata raises plain Exceptions and AssertionErrors
            raise UserError(f"'{name}' is not the name of an mtdata dataset.", remedy) from error
        if wanted not in self.index:
            raise UserError(f"mtdata does not know the dataset {name}.", remedy)
        entry = self.index[wanted]
        if self._order(entry, pair) is None:
            raise UserError(f"{name} is not a dataset of {'-'.join(pair)}.", remedy)
        return entry

    def read(self, entry: Any, pair: tuple[str, str], split: str) -> Iterator[Pair]:
        """The pairs of a dataset, fetched where mtdata's cache does not have it."""
        swapped = self._order(entry, pair)
        try:
            parser = self.parser(self.cache.get_entry(entry), ext=entry.in_ext or None, ent=entry)
            for record in parser.read_segs(show_pbar=False):
                if len(record) < 2 or record[0] is None or record[1] is None:
                    yield faulty("malformed")
                else:
                    left, right = record[:2]
                    yield Pair(right, left, split) if swapped else Pair(left, right, split)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"mtdata could not fetch or read {entry.did} ({type(error).__name__}: {error}).",
                "Check the network and the disk, and try again.",
            ) from error

    def _order(self, entry: Any, pair: tuple[str, str]) -> bool | None:
        """Whether the dataset has the languages the other way round; None: other languages."""
        wanted = tuple(self.languages.bcp47(language) for language in pair)
        if len(entry.did.langs) != 2:
            return None
        fits, swapped = self.languages.BCP47Tag.check_compat_swap(wanted, entry.did.langs)
        return bool(swapped) if fits else None


MTDATA = KnownCorpus(
    name="mtdata",
    help="official WMT and OPUS corpora by name",
    licence="see each dataset's own terms",
    open=lambda request: mtdata_source(request.languages, request.datasets),
    needs="add --dataset and --pair; needs the extra mtdata",
)
