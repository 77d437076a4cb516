"""Noun phrases of the built-in corpus, in English with its tree and in French at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeVar

from headcount.data.builtin import french
from headcount.data.builtin.lexicon import ADJECTIVES, NAMES, NOUNS, Adjective, Noun
from headcount.data.conllu import Sentence, Word, text_of

T = TypeVar("T")


@dataclass
class Node:
    """A word of the English tree with what depends on it to its left and right."""

    form: str
    lemma: str
    upos: str
    deprel: str
    feats: str = ""
    before: list[Node] = field(default_factory=list)
    after: list[Node] = field(default_factory=list)
    glued: bool = False
    """No space before it."""

    def as_(self, deprel: str) -> Node:
        """The same phrase in another function."""
        return replace(self, deprel=deprel)

    def in_order(self) -> list[Node]:
        """The words of the phrase from left to right."""
        left = [word for node in self.before for word in node.in_order()]
        return [*left, self, *(word for node in self.after for word in node.in_order())]


def sentence_of(root: Node) -> Sentence:
    """The English sentence under a root, with ids, heads and offsets."""
    nodes = root.in_order()
    ids = {id(node): number for number, node in enumerate(nodes, start=1)}
    heads = {id(child): ids[id(node)] for node in nodes for child in (*node.before, *node.after)}
    words: list[Word] = []
    at = 0
    for number, node in enumerate(nodes, start=1):
        form = node.form[0].upper() + node.form[1:] if number == 1 else node.form
        at += 0 if node.glued or number == 1 else 1
        glued_next = number < len(nodes) and nodes[number].glued
        feats = dict(item.split("=", 1) for item in node.feats.split("|") if item)
        words.append(
            Word(
                number, form, node.lemma, node.upos, "_", feats, heads.get(id(node), 0),
                node.deprel, misc={"SpaceAfter": "No"} if glued_next else {},
                start=at, end=at + len(form),
            )
        )  # fmt: skip
        at += len(form)
    return Sentence(text_of(words), words)


@dataclass(frozen=True)
class NounPhrase:
    """A noun phrase or pronoun: its English tree, its French words, and what agrees with it.

    `bare` are the French words without an indefinite article, and `article` the kind of article
    ("one", "some" or "" for any other): negation and the preposition de change them.
    """

    node: Node
    french: list[str]
    person: int  # je, tu, il, nous, vous, ils
    gender: str
    plural: bool
    bare: list[str] = field(default_factory=list)
    article: str = ""
    kinds: frozenset[str] = frozenset({"person"})
    clitic: str = ""
    """The French object pronoun that stands before the verb."""

    @property
    def third_singular(self) -> bool:
        """Whether an English verb takes its -s."""
        return self.person == 2

    def as_object(self, negated: bool) -> list[str]:
        """French words of a direct object: un, une, du, des become de under negation."""
        return ["de", *self.bare] if negated and self.article else self.french

    def after(self, preposition: Sequence[str]) -> list[str]:
        """French words after a preposition: de swallows du and des."""
        if preposition[-1] == "de" and self.article == "some":
            return [*preposition, *self.bare]
        return french.with_preposition(preposition, self.french)


SUBJECT_PRONOUNS = (
    ("I", "je", 0), ("you", "tu", 1), ("he", "il", 2), ("she", "elle", 2),
    ("we", "nous", 3), ("you", "vous", 4), ("they", "ils", 5),
)  # fmt: skip
OBJECT_PRONOUNS = (
    ("me", "me", 0), ("you", "te", 1), ("him", "le", 2), ("her", "la", 2),
    ("us", "nous", 3), ("you", "vous", 4), ("them", "les", 5),
)  # fmt: skip
LEMMAS = {"me": "I", "him": "he", "her": "she", "us": "we", "them": "they"}
POSSESSIVE_PRONOUNS = ("my", "your", "his", "our", "your", "their")
NUMBERS = (
    ("two", "deux"), ("three", "trois"), ("four", "quatre"), ("five", "cinq"),
    ("six", "six"), ("seven", "sept"), ("ten", "dix"),
)  # fmt: skip
DEGREES = (("very", "très"), ("too", "trop"), ("really", "vraiment"))


class Chooser:
    """Random choices of one corpus, Zipf-like over lists that go from common to rare."""

    def __init__(self, seed: int | str) -> None:
        self.random = random.Random(f"headcount builtin {seed}")
        self._weights: dict[int, list[float]] = {}

    def chance(self, probability: float) -> bool:
        """True with that probability."""
        return self.random.random() < probability

    def zipf(self, items: Sequence[T]) -> T:
        """An item, the one of rank r with a weight of 1 / (r + 2)."""
        count = len(items)
        if count not in self._weights:
            self._weights[count] = list(accumulate(1 / (rank + 2) for rank in range(count)))
        return self.random.choices(items, cum_weights=self._weights[count])[0]

    def weighted(self, **weights: float) -> str:
        """One of the names, by weight."""
        return self.random.choices(list(weights), list(weights.values()))[0]


class NounPhrases:
    """Makes the noun phrases of one sentence; no noun and no adjective comes twice in it."""

    def __init__(self, choose: Chooser) -> None:
        self.choose = choose
        self.used: set[Noun | Adjective] = set()
        # Whether "you" is vous throughout the sentence, the polite form.
        self.formal = choose.chance(0.5)

    def noun(self, kinds: frozenset[str]) -> Noun:
        """A noun of one of the kinds that the sentence does not have yet."""
        suited = [n for n in NOUNS if n.kinds & kinds and n not in self.used]
        chosen = self.choose.zipf(suited)
        self.used.add(chosen)
        return chosen

    def pronoun(self) -> NounPhrase:
        """A pronoun as subject."""
        choices = [p for p in SUBJECT_PRONOUNS if p[2] != (1 if self.formal else 4)]
        english, word, person = self.choose.random.choice(choices)
        gender = "f" if word == "elle" else "m"
        plural = person in (3, 5)  # a formal vous is one person
        return NounPhrase(_pronoun_node(english, "nsubj"), [word], person, gender, plural)

    def object_pronoun(self, subject: NounPhrase) -> NounPhrase | None:
        """A pronoun as object, of another person than the subject; None where it does not fit."""
        english, word, person = self.choose.random.choice(OBJECT_PRONOUNS)
        speaks, spoken_to = {0, 3}, {1, 4}
        clash = any({person, subject.person} <= group for group in (speaks, spoken_to))
        if clash or person == (1 if self.formal else 4):
            return None
        gender = "f" if word == "la" else "m"
        node = _pronoun_node(english, "obj")
        return NounPhrase(node, [], person, gender, person in (3, 5), clitic=word)

    def name(self) -> NounPhrase | None:
        """A first name that the sentence does not have yet."""
        chosen = self.choose.zipf(NAMES)
        if chosen in self.used:
            return None
        self.used.add(chosen)
        node = Node(chosen.singular, chosen.singular, "PROPN", "nsubj", "Number=Sing")
        return NounPhrase(node, [chosen.french], 2, chosen.gender, False, kinds=chosen.kinds)

    def phrase(
        self,
        kinds: frozenset[str],
        *,
        negated: bool = False,
        simple: bool = False,
        adjectives: float = 0.35,
    ) -> NounPhrase:
        """Determiner, adjectives and noun. `simple` keeps to the commonest determiners."""
        noun = self.noun(kinds)
        plural = bool(noun.plural) and self.choose.chance(0.18 if simple else 0.3)
        form = noun.plural if plural else noun.singular
        number = "Number=Plur" if plural else "Number=Sing"
        node = Node(form, noun.singular, "NOUN", "obj", number)
        bare, english_adjectives = self._with_adjectives(noun, plural, adjectives)
        node.before += english_adjectives
        person = 5 if plural else 2
        phrase = NounPhrase(node, bare, person, noun.gender, plural, bare, kinds=noun.kinds)
        return self._with_determiner(phrase, noun, negated, simple)

    def adjective(self, kinds: frozenset[str], before_noun: bool | None = None) -> Adjective | None:
        """An adjective for such a noun that the sentence does not have yet, if there is one."""
        suited = [
            a
            for a in ADJECTIVES
            if a.kinds & kinds and a not in self.used and before_noun in (None, a.before_noun)
        ]
        if not suited:
            return None
        chosen = self.choose.zipf(suited)
        self.used.add(chosen)
        return chosen

    def _with_adjectives(
        self, noun: Noun, plural: bool, probability: float
    ) -> tuple[list[str], list[Node]]:
        """The French noun between its adjectives, and the English adjectives."""
        words = (noun.french_plural if plural else noun.french).split()
        nodes: list[Node] = []
        for before_noun in (False, True):  # the innermost first: French and English mirror them
            if not self.choose.chance(probability if before_noun else probability * 0.8):
                continue
            suited = [
                a for a in ADJECTIVES if a.before_noun == before_noun and a.kinds & noun.kinds
            ]
            if not suited:
                continue
            adjective = self.choose.zipf(suited)
            node = Node(adjective.english, adjective.english, "ADJ", "amod")
            degree: list[str] = []
            if not nodes and "absolute" not in adjective.kinds and self.choose.chance(0.12):
                node.before.append(Node("very", "very", "ADV", "advmod"))
                degree = ["très"]
            following = words[0] if before_noun else ""
            form = french.adjective_form(adjective, noun.gender, plural, following)
            words = [*degree, form, *words] if before_noun else [*words, *degree, form]
            nodes.insert(0, node)
        return words, nodes

    def _with_determiner(
        self, phrase: NounPhrase, noun: Noun, negated: bool, simple: bool
    ) -> NounPhrase:
        kind = self._determiner_kind(phrase.plural, "mass" in noun.kinds, negated, simple)
        first, gender, plural = phrase.bare[0], phrase.gender, phrase.plural
        article = ""
        deprel, upos = "det", "DET"
        if kind == "the":
            english, word = "the", [french.definite(gender, plural, first)]
        elif kind == "a":
            english = "an" if _takes_an(phrase.node) else "a"
            word, article = ["une" if gender == "f" else "un"], "one"
        elif kind == "some":
            english, article = "any" if negated else "some", "some"
            word = self._some(phrase, noun)
        elif kind == "this":
            english = "these" if plural else "this"
            word = [french.demonstrative(gender, plural, first)]
        elif kind == "every":
            english, word = "every", ["chaque"]
        elif kind == "many":
            english, word, deprel, upos = "many", ["beaucoup", "de"], "amod", "ADJ"
        elif kind == "number":
            english, number = self.choose.zipf(NUMBERS)
            word, deprel, upos = [number], "nummod", "NUM"
        else:
            owner = self.choose.random.choice([0, 2, 3, 5, 4 if self.formal else 1])
            english = POSSESSIVE_PRONOUNS[owner]
            if owner == 2 and self.choose.chance(0.5):
                english = "her"
            word, deprel, upos = (
                [french.possessive(owner, gender, plural, first)], "nmod:poss", "PRON",
            )  # fmt: skip
        lemma = {"an": "a", "these": "this"}.get(english, english)
        phrase.node.before.insert(0, Node(english, lemma, upos, deprel))
        return replace(phrase, french=[*word, *phrase.bare], article=article)

    def _determiner_kind(self, plural: bool, mass: bool, negated: bool, simple: bool) -> str:
        if mass:
            return self.choose.weighted(the=0.45, some=0.45, own=0.1)
        if simple:
            if plural:
                return self.choose.weighted(the=0.7, this=0.1, own=0.2)
            return self.choose.weighted(the=0.6, a=0.15, this=0.08, own=0.17)
        if plural:
            many = 0.0 if negated else 0.07
            return self.choose.weighted(
                the=0.4, some=0.2, this=0.06, own=0.16, number=0.11, many=many
            )
        every = 0.0 if negated else 0.04
        return self.choose.weighted(the=0.46, a=0.26, this=0.06, own=0.18, every=every)

    def _some(self, phrase: NounPhrase, noun: Noun) -> list[str]:
        """des, or de before an adjective; du, de la, de l' for what cannot be counted."""
        first = phrase.bare[0]
        if phrase.plural:
            adjective_first = first != noun.french_plural.split()[0]
            return ["de"] if adjective_first else ["des"]
        article = french.definite(phrase.gender, False, first)
        return ["du"] if article == "le" else ["de", article]


def _pronoun_node(english: str, deprel: str) -> Node:
    return Node(english, LEMMAS.get(english, english), "PRON", deprel)


def _takes_an(node: Node) -> bool:
    first = node.in_order()[0].form
    return first == "honest" or (first[0] in "aeiou" and first != "useful")
