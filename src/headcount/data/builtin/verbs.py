"""Verb groups of the built-in corpus: auxiliaries, negation, adverbs and agreement."""

from __future__ import annotations

from dataclasses import dataclass, field

from headcount.data.builtin import french
from headcount.data.builtin.lexicon import Verb
from headcount.data.builtin.phrases import Node, NounPhrase


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
