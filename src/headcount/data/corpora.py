"""The registry of corpora: every name that `headcount data` and a recipe's `data.corpus` accept.

A corpus is one file beside this one, with its entry at the top, and its line here.
"""

from __future__ import annotations

from headcount.data.builtin import BUILTIN
from headcount.data.debian_descriptions import DEBIAN_DESCRIPTIONS
from headcount.data.libreoffice import LIBREOFFICE_HELP
from headcount.data.mtdata_source import MTDATA
from headcount.data.opensubtitles import OPENSUBTITLES
from headcount.data.pairs import KnownCorpus
from headcount.data.parallel_text import OWN
from headcount.data.tatoeba import TATOEBA
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
    """One line per corpus: name, what it is, languages, what it needs."""
    return "\n".join(
        f"{corpus.name}: {corpus.help}"
        + (f" ({', '.join(corpus.language_pairs)})" if corpus.language_pairs else "")
        + (f"; {corpus.needs}" if corpus.needs else "")
        for corpus in CORPORA.values()
    )
