"""One name for a relation, whichever scheme its parser follows."""

from __future__ import annotations

import pytest

from headcount.errors import UserError
from headcount.role.relations import (
    DIRECTIONS,
    SAME_AS,
    arrow,
    canonical,
    canonical_relations,
    parse_relations,
)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("dobj", "obj"),
        ("obj", "obj"),
        ("nsubj", "nsubj"),
        ("nsubjpass", "nsubj:pass"),
        ("nsubj:pass", "nsubj:pass"),
        ("ROOT", "root"),
        ("relcl", "acl:relcl"),
        ("neg", "neg"),
        ("pobj", "pobj"),
    ],
)
def test_labels_of_all_schemes_meet(label: str, name: str) -> None:
    assert canonical(label) == name


def test_a_canonical_name_is_its_own_canonical_name() -> None:
    assert all(canonical(name) == name for name in SAME_AS.values())


def test_directions_are_named_as_in_table_1() -> None:
    from_head, from_dependent = DIRECTIONS
    assert arrow("nsubj", from_head) == "v → s"
    assert arrow("nsubj", from_dependent) == "s → v"
    assert arrow("amod", from_dependent) == "adj.m. → noun"
    assert arrow("flat", from_head) == "head → dep"


def test_relations_on_the_command_line() -> None:
    assert parse_relations("nsubj, dobj,obj") == ("nsubj", "obj")
    assert parse_relations("all") is None
    assert parse_relations("none") == ()
    assert canonical_relations(["root", "amod"]) == ("amod",)
    for wrong in ("", ",", "nsubj,all", "none,amod"):
        with pytest.raises(UserError):
            parse_relations(wrong)
