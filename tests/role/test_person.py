"""First, second and third person."""

from __future__ import annotations

from headcount.role.relations import person_of


def test_the_parse_has_the_first_word() -> None:
    assert person_of("I", {"Person": "1"}) == 1
    assert person_of("you", {"Person": "2"}) == 2
    assert person_of("I", {"Person": "3"}) == 3


def test_pronouns_where_the_parse_is_silent() -> None:
    assert [person_of(form, {}) for form in ("I", "We", "you", "she", "dogs", "who")] == [
        1,
        1,
        2,
        3,
        3,
        3,
    ]
