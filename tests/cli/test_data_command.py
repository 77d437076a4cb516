"""`headcount data` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headcount.cli import app as headcount_app
from headcount.cli.data import data
from headcount.data.corpora import CORPORA
from headcount.errors import UserError

app = typer.Typer()
app.command()(data)


def run(*arguments: object) -> object:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.tsv"
    path.write_text("".join(f"Line {i}.\tСтрока {i}.\n" for i in range(100)), encoding="utf-8")
    return path


def test_help_begins_a_line_for_each_corpus() -> None:
    shown = CliRunner().invoke(headcount_app, ["data", "--help"], env={"COLUMNS": "80"}).output
    lines = [line.strip("│ ") for line in shown.splitlines()]
    for name in CORPORA:
        assert sum(line.startswith(f"- {name}:") for line in lines) == 1, shown


def test_json_says_what_was_made(table: Path, tmp_path: Path) -> None:
    arguments = ("own", "--from", table, "--pair", "en-ru", "--out", tmp_path / "out", "--json")
    first = run(*arguments, "--quiet", "--pairs", 40)
    made = json.loads(first.stdout)
    assert made["new"] is True
    assert made["counts"] == {"train": 40, "dev": 5, "test": 5}
    again = json.loads(run(*arguments, "--quiet", "--pairs", 40).stdout)
    assert again["new"] is False
    assert again["counts"] == made["counts"]


def test_people_are_told_in_two_lines(table: Path, tmp_path: Path) -> None:
    arguments = ("own", "--from", table, "--pair", "en-ru", "--out", tmp_path / "out")
    result = run(*arguments)
    assert result.exit_code == 0
    assert "train 90, dev 5, test 5 pairs of 100 read" in " ".join(result.output.split())
    assert "nothing was done" in run(*arguments).output
    assert run(*arguments, "--quiet").output.strip() == ""


def test_bad_input_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no corpus"):
        run("nothing", "--out", tmp_path / "out")
