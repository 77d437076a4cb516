"""A role that is registered is found everywhere, and nothing that lists roles breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from typer.testing import CliRunner

import headcount
from headcount.cli import app
from headcount.heads import Head
from headcount.role import ROLES, kinds_at
from headcount.role.kind import PointingRole, Setting, SiteBatch, Wanted
from headcount.role.result import Roles
from headcount.run import load_run
from headcount.study.figures.drawing import function_colours

if TYPE_CHECKING:
    from conftest import Place

COLOUR = "#123456"


def first_token(batch: SiteBatch, setting: Setting) -> Wanted:
    wanted = torch.zeros_like(batch.keys)
    wanted[:, 0] = True
    return Wanted(batch.queries, {"first token": wanted})


@pytest.fixture
def dummy() -> Iterator[PointingRole]:
    """Every head has it: any share is enough."""
    role = PointingRole(
        "first token", "points at the first token", first_token, threshold=0.0, ratio=0.0,
        colour=COLOUR, letter="F",
    )  # fmt: skip
    with ROLES.adding(role):
        yield role


def test_a_registered_role_is_counted_written_and_read_back(
    place: Place, dummy: PointingRole
) -> None:
    folder = place.folder / "run"
    result = headcount.roles(folder, place.source, relations="none", save=True)
    head = Head("enc", 0, 0)
    (role,) = [role for role in result.of(head) if role.kind == dummy.name]
    assert (str(role), role.label) == ("first token", "first")
    assert "points at first token" in role.sentence
    lengths = [len(place.run.source_tokenizer.encode(s.text)) for s in place.sentences]
    assert role.instances == sum(lengths)
    assert role.baseline == pytest.approx(len(lengths) / sum(lengths), abs=1e-5)
    assert role.seen_best is not None
    assert role.seen_best.hits == role.seen_best.argmax.count(0) > 0
    assert "first token" in load_run(folder).head_table()["roles"][head]
    assert load_run(folder).head_table()["first_token_share"][head] == role.value
    stored = folder / "analysis" / "roles.json"
    assert Roles.load(stored) == result


def test_help_print_figures_and_colours_have_it(place: Place, dummy: PointingRole) -> None:
    printed = CliRunner().invoke(app, ["roles", "--help"], env={"COLUMNS": "200"}).output
    assert "first token: points at the first token" in printed
    arguments = ["roles", str(place.folder / "run"), "--conllu", str(place.conllu), "-q", "--full"]
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    assert "first token heads" in done.output
    assert "F first token" in done.output
    assert kinds_at("enc")[-1] == "first token"
    assert function_colours()["first token"] == COLOUR


def test_a_result_with_a_role_that_is_gone_still_loads(place: Place) -> None:
    folder = place.folder / "run"
    gone = PointingRole("gone", "was here once", first_token_named, threshold=0.0, ratio=0.0)
    with ROLES.adding(gone):
        headcount.roles(folder, place.source, relations="none", save=True)
    result = Roles.load(folder / "analysis" / "roles.json")
    role = next(role for role in result.of(Head("enc", 0, 0)) if role.kind == "gone")
    assert (str(role), role.label) == ("gone", "gone")
    assert json.dumps(result.to_json())


def first_token_named(batch: SiteBatch, setting: Setting) -> Wanted:
    wanted = torch.zeros_like(batch.keys)
    wanted[:, 0] = True
    return Wanted(batch.queries, {"gone": wanted})
