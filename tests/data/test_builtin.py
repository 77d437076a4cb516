"""The built-in corpus: its French against rules of its own, its trees, its words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from headcount.data.builtin import PAIRS, builtin_source, generate
from headcount.data.builtin.french import (
    adjective_form,
    compound_past,
    definite,
    demonstrative,
    future,
    imparfait,
    join,
    possessive,
    with_preposition,
)
from headcount.data.builtin.lexicon import (
    ADJECTIVES,
    GIVING,
    INTRANSITIVE,
    NAMES,
    NOUNS,
    PREPOSITIONAL,
    SAYING,
    TRANSITIVE,
    Verb,
)
from headcount.data.cleaning import held_out_size, normalise
from headcount.data.conllu import format_sentence, parse_conllu, read_conllu
from headcount.data.corpora import fetch_corpus

VERBS = [*TRANSITIVE, *PREPOSITIONAL, *INTRANSITIVE, *GIVING, *SAYING]


def verb(infinitive: str) -> Verb:
    return next(v for v in VERBS if v.infinitive == infinitive)


@pytest.fixture(scope="module")
def made() -> list:
    return list(generate(1500))


# French, from the grammar book


@pytest.mark.parametrize(
    ("infinitive", "present"),
    [
        ("manger", "mange manges mange mangeons mangez mangent"),
        ("lancer", "lance lances lance lançons lancez lancent"),
        ("acheter", "achète achètes achète achetons achetez achètent"),
        ("envoyer", "envoie envoies envoie envoyons envoyez envoient"),
        ("choisir", "choisis choisis choisit choisissons choisissez choisissent"),
        ("vendre", "vends vends vend vendons vendez vendent"),
        ("espérer", "espère espères espère espérons espérez espèrent"),
    ],
)
def test_present(infinitive: str, present: str) -> None:
    assert " ".join(verb(infinitive).present) == present


@pytest.mark.parametrize(
    ("infinitive", "person", "form"),
    [
        ("acheter", 2, "achètera"), ("envoyer", 0, "enverrai"), ("espérer", 5, "espéreront"),
        ("vendre", 3, "vendrons"), ("voir", 4, "verrez"), ("ouvrir", 1, "ouvriras"),
        ("nettoyer", 2, "nettoiera"), ("partir", 2, "partira"),
    ],
)  # fmt: skip
def test_future(infinitive: str, person: int, form: str) -> None:
    assert future(verb(infinitive), person) == form


@pytest.mark.parametrize(
    ("infinitive", "person", "form"),
    [
        ("manger", 0, "mangeais"), ("manger", 3, "mangions"), ("lancer", 5, "lançaient"),
        ("lancer", 4, "lanciez"), ("connaître", 2, "connaissait"), ("avoir", 1, "avais"),
        ("vouloir", 3, "voulions"), ("choisir", 2, "choisissait"), ("étudier", 3, "étudiions"),
    ],
)  # fmt: skip
def test_imparfait(infinitive: str, person: int, form: str) -> None:
    assert imparfait(verb(infinitive), person) == form


def test_the_participle_agrees_as_the_auxiliary_has_it() -> None:
    girls, boys = ("f", True), ("m", True)
    assert compound_past(verb("arriver"), 5, girls, None) == ("sont", "arrivées")
    assert compound_past(verb("voir"), 5, girls, None) == ("ont", "vu")
    assert compound_past(verb("voir"), 5, girls, boys) == ("ont", "vus")
    assert compound_past(verb("prendre"), 2, boys, girls) == ("a", "prises")
    assert compound_past(verb("prendre"), 2, girls, boys) == ("a", "pris")


def test_elision_and_contraction() -> None:
    assert join(["je", "aime", "le", "hibou"]) == "J'aime le hibou"
    assert (
        join(["si", "il", "ne", "habite", "pas", ",", "que", "elle"])
        == "S'il n'habite pas, qu'elle"
    )
    assert join(["si", "elle", "dort"]) == "Si elle dort"
    assert with_preposition(["près", "de"], ["le", "lac"]) == ["près", "du", "lac"]
    assert with_preposition(["à"], ["les", "amis"]) == ["aux", "amis"]
    assert with_preposition(["à"], ["l'", "école"]) == ["à", "l'", "école"]
    assert with_preposition(["avec"], ["le", "roi"]) == ["avec", "le", "roi"]


def test_determiners_and_adjectives_before_vowels() -> None:
    assert [definite("m", False, w) for w in ("homme", "héros", "chat")] == ["l'", "le", "le"]
    assert definite("f", False, "épée") == "l'"
    assert demonstrative("m", False, "ami") == "cet"
    assert possessive(0, "f", False, "amie") == "mon"
    assert possessive(0, "f", False, "hache") == "ma"
    assert possessive(4, "m", True, "amis") == "vos"
    old = next(a for a in ADJECTIVES if a.english == "old")
    assert adjective_form(old, "m", False, "homme") == "vieil"
    assert adjective_form(old, "m", False, "chat") == "vieux"
    assert adjective_form(old, "f", True) == "vieilles"


# What was generated


def test_no_french_sentence_breaks_elision_or_contraction(made: list) -> None:
    vowel = r"(?:[aeiouàâéèêëîïôœ]|h(?!ibou|érisson|omard|éros|ache))"
    unelided = re.compile(rf"\b(?:je|me|te|ne|de|que|le|la) {vowel}", re.IGNORECASE)
    uncontracted = re.compile(r"\b(?:de|à) (?:le|les)\b|\bsi ils?\b", re.IGNORECASE)
    before_vowel = re.compile(
        rf"\b(?:ce|ma|ta|sa|beau|vieux|nouveau) {vowel}(?!t\b|st\b|tait\b)", re.IGNORECASE
    )
    for _, translation in made:
        assert not unelided.search(translation), translation
        assert not uncontracted.search(translation), translation
        if "vieux" not in translation:  # also a plural: de vieux amis
            assert not before_vowel.search(translation), translation


def test_determiners_agree_with_the_noun_beside_them(made: list) -> None:
    masculine, feminine = {"un", "le", "ce", "cet", "du", "au"}, {"une", "la", "cette"}
    plural = {"les", "des", "ces", "mes", "tes", "ses", "nos", "vos", "leurs", "aux", "deux"}
    forms = {n.french: (n.gender, False) for n in NOUNS}
    forms |= {n.french_plural: (n.gender, True) for n in NOUNS if n.french_plural != n.french}
    verbs = {form for v in VERBS for form in v.present}
    checked: Counter[str] = Counter()
    for _, translation in made:
        words = re.findall(r"\w+'?", translation.lower())
        for determiner, noun in pairwise(words):
            if noun not in forms or noun in verbs:
                continue
            gender, is_plural = forms[noun]
            if determiner in masculine | feminine:
                assert not is_plural, translation
                assert determiner in (masculine if gender == "m" else feminine), translation
                checked[gender] += 1
            elif determiner in plural:
                ambiguous = any(n.french == noun == n.french_plural for n in NOUNS)
                assert is_plural or ambiguous, translation
                checked["plural"] += 1
    assert min(checked.values()) > 100


def test_english_verbs_agree_with_their_subjects(made: list) -> None:
    bases = {v.base: v for v in VERBS}
    checked = 0
    for sentence, _ in made:
        words = sentence.words
        for word in words:
            if word.deprel != "nsubj" or word.upos not in ("NOUN", "PROPN"):
                continue
            head = words[word.head - 1]
            joined = any(w.deprel == "conj" and w.head == word.id for w in words)
            if head.feats.get("Tense") == "Pres":
                one = word.feats["Number"] == "Sing" and not joined
                expected = bases[head.lemma].third if one else bases[head.lemma].base
                assert head.form == expected, sentence.text
                checked += 1
    assert checked > 200


def test_trees_are_trees_in_universal_dependencies(made: list) -> None:
    text = "".join(format_sentence(sentence) for sentence, _ in made)
    again = list(parse_conllu(text.splitlines()))  # raises where one is not a tree
    assert [s.words for s in again] == [s.words for s, _ in made]
    labels = Counter(word.deprel for sentence, _ in made for word in sentence.words)
    wanted = "root nsubj obj amod advmod det case obl acl:relcl aux punct cop nmod:poss conj cc"
    assert all(labels[name] >= 15 for name in (*wanted.split(), "mark", "advcl", "ccomp", "xcomp"))
    for sentence, _ in made:
        for word in sentence.words:
            head = sentence.words[word.head - 1] if word.head else None
            if word.deprel == "amod":
                assert head is not None
                assert head.upos == "NOUN"
                assert word.id < head.id
            if word.deprel == "acl:relcl":
                assert head is not None
                assert head.id < word.id


def test_words_are_many_and_zipf_like(made: list) -> None:
    counts = Counter(w.form.lower() for s, _ in made for w in s.words if w.upos != "PUNCT")
    assert len(counts) > 500
    ranked = [count for _, count in counts.most_common()]
    assert ranked[0] > 20 * ranked[100]
    assert sum(count <= 3 for count in ranked) > 80  # rare words
    nouns = Counter(w.lemma for s, _ in made for w in s.words if w.upos == "NOUN")
    first, last = [n.singular for n in NOUNS[:20]], [n.singular for n in NOUNS[-20:]]
    assert sum(nouns[n] for n in first) > 4 * sum(nouns[n] for n in last) > 0
    lengths = [sum(w.upos != "PUNCT" for w in s.words) for s, _ in made]
    assert min(lengths) == 3
    assert 17 <= max(lengths) <= 22


def test_sentences_are_unique_and_need_no_cleaning(made: list) -> None:
    assert len({sentence.text for sentence, _ in made}) == len(made)
    for sentence, translation in made:
        assert normalise(sentence.text) == sentence.text
        assert normalise(translation) == translation


def test_all_persons_occur(made: list) -> None:
    french = " ".join(translation.lower() for _, translation in made)
    for pronoun in ("je", "j'", "tu", "il", "elle", "nous", "vous", "ils", "elles"):
        assert re.search(rf"\b{pronoun}\b" if pronoun[-1] != "'" else rf"\b{pronoun}", french)
    assert any(name.french in translation for name in NAMES for _, translation in made)


def test_the_seed_alone_decides() -> None:
    code = "from headcount.data.builtin import generate\n"
    code += "print([(s.text, f) for s, f in generate(60, 5)])"
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONIOENCODING": "utf-8"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment, capture_output=True, text=True, encoding="utf-8", check=True,
        )  # fmt: skip
        assert done.stdout.strip() == str([(s.text, f) for s, f in generate(60, 5)])
    assert [f for _, f in generate(60, 6)] != [f for _, f in generate(60, 5)]


def test_as_a_corpus_with_trees_beside_the_lines(tmp_path: Path) -> None:
    corpus = fetch_corpus("builtin", tmp_path / "corpus")
    assert sum(corpus.counts.values()) == PAIRS
    assert corpus.counts["dev"] == corpus.counts["test"] == 200
    for split in corpus.splits:
        trees = corpus.trees(split)
        assert trees is not None
        english = [source for source, _ in corpus.pairs(split)]
        assert [tree.text for tree in read_conllu(trees)] == english


def test_more_pairs_are_made_when_they_are_asked_for() -> None:
    for wanted in (3600, 3601, 5000, 100_000):
        total = int(builtin_source(wanted).inputs["sentences"])
        assert total >= PAIRS
        assert total - 2 * held_out_size(total) >= wanted
        assert total < 1.2 * wanted + 500
