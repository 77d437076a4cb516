"""French for the built-in corpus: articles, agreement, conjugation, elision and contraction."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from headcount.data.builtin.lexicon import Adjective, Verb, soften

_ASPIRATED = ("hibou", "hérisson", "homard", "héros", "hache")
_ELIDING = {"je", "me", "te", "se", "ne", "de", "que", "le", "la"}
_FUTURE = ("ai", "as", "a", "ons", "ez", "ont")
_IMPARFAIT = ("ais", "ais", "ait", "ions", "iez", "aient")

ETRE = {
    "present": ("suis", "es", "est", "sommes", "êtes", "sont"),
    "past": ("étais", "étais", "était", "étions", "étiez", "étaient"),
    "future": tuple("ser" + ending for ending in _FUTURE),
}
AVOIR_PRESENT = ("ai", "as", "a", "avons", "avez", "ont")

# Possessives by the owner's person (je, tu, il, nous, vous, ils): masculine, feminine, plural.
POSSESSIVES = (
    ("mon", "ma", "mes"), ("ton", "ta", "tes"), ("son", "sa", "ses"),
    ("notre", "notre", "nos"), ("votre", "votre", "vos"), ("leur", "leur", "leurs"),
)  # fmt: skip


def starts_with_vowel(word: str) -> bool:
    """Whether a word begins with a vowel or a mute h, so that the word before it is elided."""
    plain = unicodedata.normalize("NFD", word.lower())
    if plain[0] == "h":
        return not word.lower().startswith(_ASPIRATED)
    return plain[0] in "aeiouœ"


def join(words: Sequence[str]) -> str:
    """Words as a sentence: elided where they must be, commas attached, the first capitalised."""
    text = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in _ELIDING and following and starts_with_vowel(following):
            text += word[:-1] + "'"
        elif word == "si" and following in ("il", "ils"):
            text += "s'"
        elif word == ",":
            text = text.rstrip() + ", "
        else:
            text += word if word.endswith("'") else word + " "
    text = text.strip()
    return text[0].upper() + text[1:]


def with_preposition(preposition: Sequence[str], phrase: Sequence[str]) -> list[str]:
    """A preposition and a noun phrase, contracted: au, aux, du, des."""
    contracted = {("à", "le"): "au", ("à", "les"): "aux", ("de", "le"): "du", ("de", "les"): "des"}
    joined = contracted.get((preposition[-1], phrase[0]))
    if joined is None:
        return [*preposition, *phrase]
    return [*preposition[:-1], joined, *phrase[1:]]


def definite(gender: str, plural: bool, following: str) -> str:
    """le, la, l' or les."""
    if plural:
        return "les"
    if starts_with_vowel(following):
        return "l'"
    return "le" if gender == "m" else "la"


def demonstrative(gender: str, plural: bool, following: str) -> str:
    """ce, cet, cette or ces."""
    if plural:
        return "ces"
    if gender == "f":
        return "cette"
    return "cet" if starts_with_vowel(following) else "ce"


def possessive(owner: int, gender: str, plural: bool, following: str) -> str:
    """mon, ma, mes, ...; mon, ton, son before a vowel, for both genders."""
    masculine, feminine, plurals = POSSESSIVES[owner]
    if plural:
        return plurals
    return feminine if gender == "f" and not starts_with_vowel(following) else masculine


def adjective_form(adjective: Adjective, gender: str, plural: bool, following: str = "") -> str:
    """The form that agrees; `following` is the next word where the adjective precedes the noun."""
    if gender == "m" and not plural and following and starts_with_vowel(following):
        return adjective.french[4]
    return adjective.french[(gender == "f") + 2 * plural]


def agree(participle: str, gender: str, plural: bool) -> str:
    """A past participle with its endings: vu, vue, vus, vues; pris, prise, pris, prises."""
    form = participle + ("e" if gender == "f" else "")
    return form if not plural or form.endswith("s") else form + "s"


def imparfait(verb: Verb, person: int) -> str:
    """The imperfect, from the stem of the present's first person plural."""
    stem, ending = verb.present[3].removesuffix("ons"), _IMPARFAIT[person]
    if ending.startswith("i"):  # mangeons, but mangions
        stem = verb.infinitive[:-2] if soften(verb.infinitive[:-2], "ons") == stem else stem
    return stem + ending


def future(verb: Verb, person: int) -> str:
    """The simple future."""
    return verb.future_stem + _FUTURE[person]


def compound_past(
    verb: Verb, person: int, subject: tuple[str, bool], before: tuple[str, bool] | None
) -> tuple[str, str]:
    """Auxiliary and participle of the passé composé.

    With être the participle agrees with the subject, with avoir with a direct object that stands
    before the verb (`before`), if there is one. Both are (gender, plural).
    """
    if verb.with_etre:
        return ETRE["present"][person], agree(verb.participle, *subject)
    return AVOIR_PRESENT[person], agree(verb.participle, *(before or ("m", False)))
