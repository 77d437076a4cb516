"""Clauses and sentences of the built-in corpus, in English with its tree and in French at once.

The two languages differ where real ones do: French agrees in number and gender, moves object
pronouns before the verb and most adjectives behind the noun, negates with two words, says some
objects with a preposition that English has without (obéir à) and the other way round (regarder),
and makes its past with two auxiliaries.
"""

from __future__ import annotations

from dataclasses import replace

from headcount.data.builtin import french
from headcount.data.builtin.clauses import PERSON, Clause, Clauses, Predicate, verbal
from headcount.data.builtin.lexicon import SAYING
from headcount.data.builtin.phrases import Chooser, Node, NounPhrase

# When: English words, French words, and the tense that goes with them.
TIMES = {
    "present": (("now", "maintenant"), ("today", "aujourd'hui")),
    "past": (("yesterday", "hier"),),
    "future": (("tomorrow", "demain"), ("tonight", "ce soir"), ("soon", "bientôt")),
}
COMMENTS = (("unfortunately", "malheureusement"), ("fortunately", "heureusement"))


class Grammar:
    """Makes one sentence pair after the other from one seed."""

    def __init__(self, seed: int) -> None:
        self.choose = Chooser(seed)

    def sentence(self) -> tuple[Node, str]:
        """An English tree and the French sentence."""
        self.clauses = Clauses(self.choose)
        kind = self.choose.weighted(simple=0.6, two=0.1, adverbial=0.12, content=0.08, question=0.1)
        if kind == "question":
            clause = self.question()
            return _punctuated(clause.node, "?"), french.join(clause.french) + " ?"
        makers = {
            "simple": self.simple, "two": self.coordinated,
            "adverbial": self.adverbial, "content": self.content,
        }  # fmt: skip
        clause = makers[kind]()
        return _punctuated(clause.node, "."), french.join(clause.french) + "."

    def simple(self) -> Clause:
        """One clause, sometimes with a time or a comment before it."""
        clause = self.clauses.clause()
        if self.choose.chance(0.16):
            return self._with_opening(clause, TIMES[clause.tense], comma=self.choose.chance(0.4))
        if self.choose.chance(0.04):
            return self._with_opening(clause, COMMENTS, comma=True)
        return clause

    def coordinated(self) -> Clause:
        """Two clauses with and or but."""
        first, second = self.clauses.clause(short=True), self.clauses.clause(short=True)
        english, word = self.choose.random.choice([("and", "et"), ("but", "mais")])
        second.node.deprel = "conj"
        second.node.before.insert(0, Node(english, english, "CCONJ", "cc"))
        first.node.after.append(second.node)
        return Clause(first.node, [*first.french, word, *second.french], first.tense)

    def adverbial(self) -> Clause:
        """A clause with because, while, when or if."""
        kind = self.choose.weighted(because=0.5, when=0.2, if_=0.2, while_=0.1)
        if kind == "because":
            return self.because()
        if kind == "if_":
            main = self.clauses.clause("future", short=True)
            side = self.clauses.clause("present", short=True)
        else:
            tense = "present" if kind == "while_" else self.choose.weighted(present=0.5, past=0.5)
            main = self.clauses.clause(tense, short=True, event=True)
            side = self.clauses.clause(tense, short=True, event=True)
        english, words, upos, deprel = {
            "if_": ("if", ["si"], "SCONJ", "mark"),
            "while_": ("while", ["pendant", "que"], "SCONJ", "mark"),
            "when": ("when", ["quand"], "ADV", "advmod"),
        }[kind]
        side.node.deprel = "advcl"
        side.node.before.insert(0, Node(english, english, upos, deprel))
        if self.choose.chance(0.5):
            main.node.after.append(side.node)
            return Clause(main.node, [*main.french, *words, *side.french], main.tense)
        comma = Node(",", ",", "PUNCT", "punct", glued=True)
        main.node.before[:0] = [side.node, comma]
        return Clause(main.node, [*words, *side.french, ",", *main.french], main.tense)

    def because(self) -> Clause:
        """A pronoun that agrees with the subject: the cats sleep because they are tired."""
        subject = self.clauses.subject()
        main = self.clauses.clause(subject=subject, short=True)
        if subject.node.upos == "PRON":
            again = replace(subject, node=replace(subject.node, before=[], after=[]))
        else:
            again = _taken_up(subject)
        tense = "past" if main.tense == "past" else "present"
        side = self.clauses.quality(again, tense)
        side.node.deprel = "advcl"
        side.node.before.insert(0, Node("because", "because", "SCONJ", "mark"))
        main.node.after.append(side.node)
        return Clause(main.node, [*main.french, "parce", "que", *side.french], main.tense)

    def content(self) -> Clause:
        """Somebody says or thinks that something is so."""
        verb = self.choose.zipf(SAYING)
        subject = self.clauses.subject(PERSON, short=True)
        inner = self.clauses.clause(short=True)
        inner.node.deprel = "ccomp"
        inner.node.before.insert(0, Node("that", "that", "SCONJ", "mark"))
        told = Predicate("present", english_after=[inner.node], french_after=["que", *inner.french])
        return verbal(subject, verb, told)

    def question(self) -> Clause:
        """A question: does, did, will or a form of be, and est-ce que."""
        clause = self.clauses.clause(short=True, question=True)
        words = ["est-ce", "que", *clause.french]
        if self.choose.chance(0.3):
            clause.node.before.insert(0, Node("why", "why", "ADV", "advmod"))
            words.insert(0, "pourquoi")
        return Clause(clause.node, words, clause.tense)

    def _with_opening(
        self, clause: Clause, openings: tuple[tuple[str, str], ...], comma: bool
    ) -> Clause:
        """A time or a comment before the clause."""
        english, word = self.choose.random.choice(openings)
        is_noun = english in ("today", "yesterday", "tomorrow", "tonight")
        upos, deprel = ("NOUN", "obl:unmarked") if is_noun else ("ADV", "advmod")
        opening = [Node(english, english, upos, deprel)]
        if comma:
            opening.append(Node(",", ",", "PUNCT", "punct", glued=True))
        clause.node.before[:0] = opening
        return Clause(clause.node, [*word.split(), ",", *clause.french], clause.tense)


def _taken_up(phrase: NounPhrase) -> NounPhrase:
    """The pronoun that takes up a noun phrase: he, she, it or they; il, elle, ils or elles."""
    if phrase.plural:
        english = "they"
    elif "person" in phrase.kinds:
        english = "she" if phrase.gender == "f" else "he"
    else:
        english = "it"
    word = ("elle" if phrase.gender == "f" else "il") + ("s" if phrase.plural else "")
    node = Node(english, english, "PRON", "nsubj")
    person = 5 if phrase.plural else 2
    return NounPhrase(node, [word], person, phrase.gender, phrase.plural, kinds=phrase.kinds)


def _punctuated(node: Node, mark: str) -> Node:
    node.after.append(Node(mark, mark, "PUNCT", "punct", glued=True))
    return node
