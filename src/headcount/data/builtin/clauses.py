"""Verb groups and clauses of the built-in corpus, in English with its tree and in French."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from headcount.data.builtin import french
from headcount.data.builtin.lexicon import (
    ADJECTIVES,
    GIVING,
    INTRANSITIVE,
    MANNERS,
    MODALS,
    PREPOSITIONAL,
    TRANSITIVE,
    Verb,
)
from headcount.data.builtin.phrases import DEGREES, Chooser, Node, NounPhrase, NounPhrases


@dataclass
class Predicate:
    """The verb group of a clause while it is being built."""

    tense: str
    negation: str = ""  # "", "not" or "never"
    frequency: tuple[str, str] | None = None
    modal: Verb | None = None
    question: bool = False
    english_after: list[Node] = field(default_factory=list)
    french_after: list[str] = field(default_factory=list)
    clitic: str = ""
    object_before: tuple[str, bool] | None = None
    """Gender and number of a direct object before the verb: the participle agrees with it."""
    gap: Node | None = None
    """The relative pronoun that is the object."""


def english_group(subject: NounPhrase, verb: Verb, predicate: Predicate) -> Node:
    """The main verb with its subject, auxiliaries and adverbs."""
    wanting = predicate.modal is not None and predicate.modal.base == "want"
    finite = predicate.modal if predicate.modal is not None and wanting else verb
    negated = predicate.negation == "not"
    auxiliaries: list[Node] = []
    form, feats = finite.base, "VerbForm=Inf"
    if predicate.tense == "future":
        auxiliaries = [Node("will", "will", "AUX", "aux")]
    elif predicate.modal is not None and not wanting:
        auxiliaries = [Node(predicate.modal.base, predicate.modal.base, "AUX", "aux")]
    elif negated or predicate.question:
        does = {"past": "did"}.get(predicate.tense, "does" if subject.third_singular else "do")
        auxiliaries = [Node(does, "do", "AUX", "aux")]
    elif predicate.tense == "past":
        form, feats = finite.past, "Tense=Past"
    else:
        form = finite.third if subject.third_singular else finite.base
        feats = "Tense=Pres"
    node = Node(form, finite.base, "VERB", "root", feats)
    said = subject.node.as_("nsubj")
    node.before = [*auxiliaries[:1], said] if predicate.question else [said, *auxiliaries]
    node.before += not_node(negated)
    for word in (predicate.negation if not negated else "", (predicate.frequency or ("",))[0]):
        if word:
            node.before.append(Node(word, word, "ADV", "advmod"))
    if wanting:
        inner = Node(verb.base, verb.base, "VERB", "xcomp", "VerbForm=Inf")
        inner.before = [Node("to", "to", "PART", "mark")]
        inner.after = predicate.english_after
        node.after = [inner]
    else:
        node.after = predicate.english_after
    return node


def french_group(subject: NounPhrase, verb: Verb, predicate: Predicate) -> list[str]:
    """ne, pronoun, finite verb, pas or jamais, adverb, participle or infinitive, the rest."""
    person = subject.person
    clitic = [predicate.clitic] if predicate.clitic else []
    rest: list[str] = []
    if predicate.modal is not None:
        finite, rest, clitic = predicate.modal.present[person], [*clitic, verb.infinitive], []
    elif predicate.tense == "future":
        finite = french.future(verb, person)
    elif predicate.tense == "present":
        finite = verb.present[person]
    elif verb.state:
        finite = french.imparfait(verb, person)
    else:
        finite, participle = french.compound_past(
            verb, person, (subject.gender, subject.plural), predicate.object_before
        )
        rest = [participle]
    negation = {"not": ["pas"], "never": ["jamais"], "": []}[predicate.negation]
    frequency = [predicate.frequency[1]] if predicate.frequency else []
    start = [*(["ne"] if negation else []), *clitic, finite, *negation, *frequency, *rest]
    return [*start, *([verb.complement] if verb.complement else []), *predicate.french_after]


def copula(subject: NounPhrase, tense: str) -> tuple[Node, list[Node]]:
    """The copula and, in the future, its auxiliary."""
    if tense == "future":
        return Node("be", "be", "AUX", "cop"), [Node("will", "will", "AUX", "aux")]
    if tense == "past":
        form = "was" if subject.person in (0, 2) else "were"
    else:
        form = {0: "am", 2: "is"}.get(subject.person, "are")
    return Node(form, "be", "AUX", "cop"), []


def not_node(negated: bool) -> list[Node]:
    return [Node("not", "not", "PART", "advmod")] if negated else []


PERSON = frozenset({"person"})
ALIVE = frozenset({"person", "animal"})
THINGS = frozenset({"thing", "vehicle", "text", "place", "food"})
TENSES = {"present": 0.5, "past": 0.33, "future": 0.17}
FREQUENCIES = (
    ("often", "souvent"), ("always", "toujours"), ("sometimes", "parfois"), ("rarely", "rarement"),
)  # fmt: skip
PLACES = {"in": ["dans"], "on": ["sur"], "near": ["près", "de"]}


@dataclass
class Clause:
    """A clause: its English root and its French words."""

    node: Node
    french: list[str]
    tense: str = "present"


class Clauses:
    """Makes the clauses of one sentence."""

    def __init__(self, choose: Chooser) -> None:
        self.choose = choose
        self.nouns = NounPhrases(choose)
        self.used: set[str] = set()

    def clause(
        self,
        tense: str = "",
        *,
        subject: NounPhrase | None = None,
        short: bool = False,
        question: bool = False,
        event: bool = False,
    ) -> Clause:
        """A clause with a verb of any kind; an `event` is something that somebody does."""
        tense = tense or self.choose.weighted(**TENSES)
        quality = 0.0 if event else 0.14
        kind = self.choose.weighted(
            object=0.46, none=0.2, preposition=0.12, giving=0.08, quality=quality
        )
        if kind == "quality":
            subject = subject or self.subject(short=short, any_kind=True)
            return self.quality(subject, tense, question)
        table = {
            "object": TRANSITIVE, "none": INTRANSITIVE,
            "preposition": PREPOSITIONAL, "giving": GIVING,
        }[kind]  # fmt: skip
        if kind == "giving" and subject is not None and not subject.kinds & PERSON:
            table, kind = TRANSITIVE, "object"
        verb = self.verb(table, subject)
        if subject is None:
            subject = self.subject(_agents(verb), short=short)
        predicate = self._predicate(verb, tense, question)
        if verb.objects:
            self._add_object(verb, subject, predicate, short=short or kind == "giving")
        if kind == "giving":
            self._add_receiver(predicate)
        self._add_circumstances(verb, predicate, kind, short)
        return verbal(subject, verb, predicate)

    def verb(self, table: list[Verb], subject: NounPhrase | None = None) -> Verb:
        """A verb that the subject can be the agent of and that the sentence does not have yet."""
        suited = [v for v in table if subject is None or _agents(v) & subject.kinds]
        chosen = self.choose.zipf([v for v in suited if v.base not in self.used] or suited)
        self.used.add(chosen.base)
        return chosen

    def quality(self, subject: NounPhrase, tense: str, question: bool = False) -> Clause:
        """The subject is so: a copula and an adjective that agrees."""
        adjective = self.nouns.adjective(subject.kinds) or ADJECTIVES[0]
        negated = self.choose.chance(0.15)
        often = subject.kinds & ALIVE and self.choose.chance(0.15)
        frequency = self.choose.zipf(FREQUENCIES[:2]) if often else None
        node = Node(adjective.english, adjective.english, "ADJ", "root")
        after = [french.adjective_form(adjective, subject.gender, subject.plural)]
        be, auxiliaries = copula(subject, tense)
        group = [*auxiliaries, *not_node(negated)]
        ordered = [*group, be] if auxiliaries else [be, *not_node(negated)]
        said = subject.node.as_("nsubj")
        node.before = [ordered[0], said, *ordered[1:]] if question else [said, *ordered]
        words = [*subject.french, *(["ne"] if negated else [])]
        words += [french.ETRE[tense][subject.person], *(["pas"] if negated else [])]
        if frequency:
            english, word = frequency
            node.before.append(Node(english, english, "ADV", "advmod"))
            words.append(word)
        elif "absolute" not in adjective.kinds and self.choose.chance(0.3):
            english, word = self.choose.zipf(DEGREES)
            node.before.append(Node(english, english, "ADV", "advmod"))
            words.append(word)
        return Clause(node, words + after, tense)

    def _predicate(self, verb: Verb, tense: str, question: bool) -> Predicate:
        predicate = Predicate(tense, question=question)
        if tense == "present" and not question and self.choose.chance(0.14) and not verb.state:
            predicate.modal = self.choose.zipf(MODALS)
        can = predicate.modal is not None and predicate.modal.base == "can"
        if not can and self.choose.chance(0.18):
            predicate.negation = "not" if question or self.choose.chance(0.75) else "never"
        elif not question and self.choose.chance(0.14):
            predicate.frequency = self.choose.zipf(FREQUENCIES[: 2 if verb.state else 4])
        return predicate

    def _add_object(
        self, verb: Verb, subject: NounPhrase, predicate: Predicate, short: bool
    ) -> None:
        """The object, a pronoun or a noun phrase, with a preposition in either language or not."""
        negated = bool(predicate.negation)
        thing: NounPhrase | None = None
        if "person" in verb.objects and not verb.french_preposition and self.choose.chance(0.25):
            thing = self.nouns.object_pronoun(subject)
        if thing is None and "person" in verb.objects and self.choose.chance(0.15):
            thing = self.nouns.name()
        if thing is None:
            thing = self.nouns.phrase(verb.objects, negated=negated, simple="to" in verb.objects)
            if not short and not negated and thing.article != "some" and self.choose.chance(0.14):
                thing = self.with_relative(thing, predicate.tense)
        node = thing.node.as_("obl" if verb.preposition else "obj")
        if verb.preposition:
            node.before.insert(0, Node(verb.preposition, verb.preposition, "ADP", "case"))
        predicate.english_after.append(node)
        if thing.clitic:
            predicate.clitic, predicate.object_before = thing.clitic, (thing.gender, thing.plural)
        elif verb.french_preposition:
            predicate.french_after += thing.after([verb.french_preposition])
        else:
            predicate.french_after += thing.as_object(negated)

    def _add_receiver(self, predicate: Predicate) -> None:
        receiver = (self.nouns.name() if self.choose.chance(0.25) else None) or self.nouns.phrase(
            PERSON, simple=True, adjectives=0.2
        )
        node = receiver.node.as_("obl")
        node.before.insert(0, Node("to", "to", "ADP", "case"))
        predicate.english_after.append(node)
        predicate.french_after += receiver.after(["à"])

    def _add_circumstances(self, verb: Verb, predicate: Predicate, kind: str, short: bool) -> None:
        """How and where; not where a relative clause is open and would take it."""
        if any(_has_relative(node) for node in predicate.english_after):
            return
        manner = not verb.state and verb.base not in ("stay", "disappear", "go", "come")
        if manner and self.choose.chance(0.15 if kind == "object" else 0.2):
            english, word = self.choose.zipf(MANNERS)
            predicate.english_after.append(Node(english, english, "ADV", "advmod"))
            predicate.french_after.insert(0, word)
            return
        event = kind in ("none", "object") and not verb.state and "place" not in verb.objects
        if event and self.choose.chance(0.12 if short else 0.26):
            node, words = self.place()
            predicate.english_after.append(node)
            predicate.french_after += words

    def place(self, deprel: str = "obl") -> tuple[Node, list[str]]:
        """In, on or near a place."""
        english = self.choose.weighted(**{"in": 0.6, "near": 0.28, "on": 0.12})
        spot = self.nouns.phrase(frozenset({english}), simple=True, adjectives=0.18)
        node = spot.node.as_(deprel)
        node.before.insert(0, Node(english, english, "ADP", "case"))
        return node, spot.after(PLACES[english])

    def subject(
        self, kinds: frozenset[str] = ALIVE, *, short: bool = False, any_kind: bool = False
    ) -> NounPhrase:
        """A pronoun, a name, or a noun phrase, sometimes with something behind it or doubled."""
        if kinds & PERSON and self.choose.chance(0.3):
            return self.nouns.pronoun()
        if kinds & PERSON and self.choose.chance(0.14):
            name = self.nouns.name()
            if name is not None:
                return name
        if any_kind and self.choose.chance(0.7):
            kinds = THINGS
        phrase = self.nouns.phrase(kinds)
        if short:
            return phrase
        extra = self.choose.weighted(none=0.6, relative=0.14, place=0.08, owner=0.1, pair=0.08)
        if extra == "relative" and phrase.article != "some":
            return self.with_relative(phrase, self.choose.weighted(present=0.7, past=0.3))
        if extra == "place" and not phrase.kinds & {"place", "food", "drink"}:
            node, words = self.place("nmod")
            phrase.node.after.append(node)
            return replace(phrase, french=[*phrase.french, *words])
        if extra == "owner" and phrase.french[0] in ("le", "la", "les", "l'"):
            return self.with_owner(phrase)
        if extra == "pair":
            return self.pair(phrase)
        return phrase

    def with_owner(self, phrase: NounPhrase) -> NounPhrase:
        """The teacher's book: le livre du professeur."""
        owner = (self.nouns.name() if self.choose.chance(0.4) else None) or self.nouns.phrase(
            PERSON, simple=True, adjectives=0.1
        )
        if owner.plural:
            return phrase
        node = owner.node.as_("nmod:poss")
        node.after.append(Node("'s", "'s", "PART", "case", glued=True))
        phrase.node.before[0] = node  # in the place of the article
        return replace(phrase, french=[*phrase.french, *owner.after(["de"])])

    def pair(self, first: NounPhrase) -> NounPhrase:
        """Two subjects of a kind: masculine unless both are feminine."""
        kinds = first.kinds & (ALIVE | THINGS)
        second = self.nouns.phrase(kinds, adjectives=0.15)
        node = second.node.as_("conj")
        node.before.insert(0, Node("and", "and", "CCONJ", "cc"))
        first.node.after.append(node)
        gender = "f" if first.gender == second.gender == "f" else "m"
        words = [*first.french, "et", *second.french]
        return NounPhrase(first.node, words, 5, gender, True, kinds=kinds)

    def with_relative(self, phrase: NounPhrase, tense: str) -> NounPhrase:
        """A relative clause in which the noun is the subject (qui) or the object (que)."""
        who = "who" if "person" in phrase.kinds else "that"
        if phrase.kinds & ALIVE and self.choose.chance(0.5):
            relative = Node(who, who, "PRON", "nsubj")
            gap = replace(phrase, node=relative, french=["qui"], bare=[], article="")
            table = self.choose.random.choice([TRANSITIVE, INTRANSITIVE])
            verb = self.verb(table, phrase)
            predicate = Predicate(tense)
            if self.choose.chance(0.15):
                predicate.negation = "not"
            if verb.objects:
                self._add_object(verb, gap, predicate, short=True)
            clause = verbal(gap, verb, predicate)
        else:
            verbs = [v for v in TRANSITIVE if v.objects & phrase.kinds and not v.preposition]
            verb = self.verb(verbs)
            if PERSON & _agents(verb) and self.choose.chance(0.4):
                agent = self.nouns.pronoun()
            else:
                agent = self.nouns.phrase(_agents(verb), simple=True, adjectives=0.15)
            predicate = Predicate(tense, gap=Node("that", "that", "PRON", "obj"))
            predicate.object_before = (phrase.gender, phrase.plural)
            clause = verbal(agent, verb, predicate)
            clause.french.insert(0, "que")
        clause.node.deprel = "acl:relcl"
        phrase.node.after.append(clause.node)
        return replace(phrase, french=[*phrase.french, *clause.french])


def verbal(subject: NounPhrase, verb: Verb, predicate: Predicate) -> Clause:
    """Subject, verb group and what follows, in both languages."""
    node = english_group(subject, verb, predicate)
    if predicate.gap:
        node.before.insert(0, predicate.gap)
    words = [*subject.french, *french_group(subject, verb, predicate)]
    return Clause(node, words, predicate.tense)


def _agents(verb: Verb) -> frozenset[str]:
    return ALIVE if "alive" in verb.agents else verb.agents


def _has_relative(node: Node) -> bool:
    return any(child.deprel == "acl:relcl" for child in node.after)
