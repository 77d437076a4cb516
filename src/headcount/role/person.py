"""First, second and third person among subjects (the paper's footnote in Sec. 5.2).

The paper explains by it why verb-subject heads differ between domains. The subjects are those of
the relation `nsubj`, the ones that the accuracy is measured on.
"""

from __future__ import annotations

from collections.abc import Mapping

SUBJECT = "nsubj"
PERSONS = ("first", "second", "third")

_PRONOUNS = {
    **dict.fromkeys(("i", "we", "me", "us", "myself", "ourselves", "mine", "ours"), 1),
    **dict.fromkeys(("you", "ya", "y'all", "yall", "thou", "ye", "yourself", "yours"), 2),
}


def person_of(form: str, features: Mapping[str, str]) -> int:
    """1, 2 or 3: the parse's own `Person` where it has one, else by the English pronouns.

    Anything that is not a pronoun of the first or second person is third person.
    """
    person = features.get("Person", "")
    if person in ("1", "2", "3"):
        return int(person)
    return _PRONOUNS.get(form.lower(), 3)
