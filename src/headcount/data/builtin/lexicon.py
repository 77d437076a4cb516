"""The words of the built-in corpus: English and French forms, and what goes with what.

They are in lexicon.yaml, from common to rare: the grammar draws words in a Zipf-like way
by their rank, so that a corpus has both very frequent and really rare words, as natural text does.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import yaml

_TABLES: dict[str, str] = yaml.safe_load(
    files("headcount.data.builtin").joinpath("lexicon.yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Noun:
    """A noun or a first name; `plural` is empty where there is none."""

    singular: str
    plural: str
    french: str
    french_plural: str
    gender: str
    kinds: frozenset[str]


@dataclass(frozen=True)
class Verb:
    """A verb with its English forms, its French paradigm and what it takes."""

    base: str
    third: str
    past: str
    preposition: str
    infinitive: str
    present: tuple[str, ...]
    participle: str
    future_stem: str
    state: bool
    with_etre: bool
    french_preposition: str
    complement: str
    """A French word that belongs to the verb: "besoin" of "avoir besoin"."""
    agents: frozenset[str]
    objects: frozenset[str]


@dataclass(frozen=True)
class Adjective:
    """An adjective; `french` are masculine, feminine, their plurals, and before a vowel."""

    english: str
    french: tuple[str, str, str, str, str]
    before_noun: bool
    kinds: frozenset[str]


_ENDINGS = {
    "er": ("e", "es", "e", "ons", "ez", "ent"),
    "ir": ("is", "is", "it", "issons", "issez", "issent"),
    "re": ("s", "s", "", "ons", "ez", "ent"),
}
_PARTICIPLES = {"er": "é", "ir": "i", "re": "u"}
_MUTE = (0, 1, 2, 5)  # the persons whose ending is not heard: je, tu, il, ils


def _rows(table: str) -> list[list[str]]:
    lines = _TABLES[table].strip().splitlines()
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def _items(table: str) -> list[list[str]]:
    return [cell.split() for row in _rows(table) for cell in row]


def _noun(row: list[str]) -> Noun:
    english, french, gender, kinds = row
    singular, _, plural = english.partition("/")
    french_singular, _, french_plural = french.partition("/")
    return Noun(singular, plural, french_singular, french_plural, gender, frozenset(kinds.split()))


def _verb(row: list[str]) -> Verb:
    english, french, conjugation, participle, future, roles = row
    base, third, past, *preposition = english.split()
    french_preposition, _, french = french.rpartition(":")
    infinitive, *rest = french.split()
    kind, *mute_stem = conjugation.split()
    if kind in _ENDINGS:
        stem = infinitive[:-2]
        stems = [mute_stem[0] if mute_stem and i in _MUTE else stem for i in range(6)]
        endings = _ENDINGS[kind]
        present = tuple(soften(s, e) + e for s, e in zip(stems, endings, strict=True))
        participle = stem + _PARTICIPLES[kind] if participle == "=" else participle
        regular = (mute_stem[0] + "er" if mute_stem else infinitive).removesuffix("e")
    else:
        present, regular = tuple(conjugation.split()), infinitive
    agents, _, objects = roles.partition(">")
    return Verb(
        base=base, third=third, past=past, preposition=" ".join(preposition),
        infinitive=infinitive, present=present, participle=participle,
        future_stem=regular if future == "=" else future,
        state="*" in rest, with_etre="+" in rest, french_preposition=french_preposition.strip(),
        complement=" ".join(word for word in rest if word not in "*+"),
        agents=frozenset(agents.split()), objects=frozenset(objects.split()),
    )  # fmt: skip


def soften(stem: str, ending: str) -> str:
    """Keep the sound of -ger and -cer before a and o: mangeons, lançons."""
    if ending[:1] in ("a", "o"):
        if stem.endswith("g"):
            return stem + "e"
        if stem.endswith("c"):
            return stem[:-1] + "ç"
    return stem


def _adjective(row: list[str]) -> Adjective:
    english, french, place, kinds = row
    forms = french.split()
    if len(forms) == 1:
        forms = [forms[0], forms[0] + "e", forms[0] + "s", forms[0] + "es"]
    masculine, feminine, masculines, feminines, before_vowel = [*forms, forms[0]][:5]
    return Adjective(
        english,
        (masculine, feminine, masculines, feminines, before_vowel),
        place == "before",
        frozenset(kinds.split()),
    )


NOUNS = [_noun(row) for row in _rows("nouns")]
NAMES = [Noun(en, "", fr, "", gender, frozenset({"person"})) for en, fr, gender in _items("names")]
TRANSITIVE = [_verb(row) for row in _rows("transitive")]
PREPOSITIONAL = [_verb(row) for row in _rows("prepositional")]
INTRANSITIVE = [_verb(row) for row in _rows("intransitive")]
GIVING = [_verb(row) for row in _rows("giving")]
SAYING = [_verb(row) for row in _rows("saying")]
MODALS = [_verb(row) for row in _rows("modals")]
ADJECTIVES = [_adjective(row) for row in _rows("adjectives")]
MANNERS = [(english, french) for english, french in _items("manners")]
