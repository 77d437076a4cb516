"""The verb: what it prints, its JSON, and bad input as one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headcount.cli import app
from headcount.cli.roles_display import show
from headcount.data.builtin import generate
from headcount.data.conllu import write_conllu
from headcount.errors import UserError
from headcount.role.analysis import roles as name_roles
from headcount.role.head_roles import Criteria
from headcount.run import resolve_run

if TYPE_CHECKING:
    from conftest import Place


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["roles", *map(str, arguments)], env={"COLUMNS": "120"})


def test_both_tables_are_printed(place: Place) -> None:
    sites = ("--sites", "enc,dec,cross", "--full", "-q")
    done = call(place.folder / "run", "--conllu", place.conllu, *sites)
    assert done.exit_code == 0, done.output
    for expected in ("enc.1.0", "dec.0.1", "cross.1.1", "v → s", "adj.m. → noun", "60 sentences"):
        assert expected in done.output
    assert (place.folder / "run" / "analysis" / "roles.json").exists()


def test_json(place: Place) -> None:
    done = call(
        place.folder / "run", "--src", place.source, "--conllu", place.conllu, "--json", "--quiet",
        "--relations", "dobj,det", "--sentences", "20", "--threshold", "0.5", "--relative",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert {b["name"].split()[0] for b in result["best"] if b["role"] == "syntactic"} == {
        "obj",
        "det",
    }
    assert result["data"]["sentences"] == 20
    assert result["criteria"]["threshold"] == 0.5
    assert result["criteria"]["relative"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "No sentences were given"),
        (["--src", "missing.en"], "missing.en does not exist"),
        (["--conllu", "broken.conllu"], "broken.conllu, line 1"),
        (["--src", "test.en", "--conllu", "other.conllu"], "None of the 60 parses of other.conllu"),
        (["--src", "test.en", "--sites", "encoder"], "Unknown attention site"),
        (["--conllu", "test.conllu", "--relations", "all,nsubj"], "not a list of relations"),
        (["--conllu", "test.conllu", "--threshold", "95"], "threshold of 95"),
        (["--conllu", "test.conllu", "--sentences", "0"], "0 sentences are too few"),
    ],
)
def test_bad_input_is_one_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(place.folder)
    (place.folder / "broken.conllu").write_text("1\tonly\tthree\n")
    write_conllu(place.folder / "other.conllu", [parse for parse, _ in generate(60, seed=6)])
    done = call("run", *arguments)
    assert isinstance(done.exception, UserError)
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (place.folder / "run" / "analysis").exists()


def test_the_verb_is_a_function_of_the_package() -> None:
    """In a fresh process, before and after its stage is imported, with a signature to read."""
    code = (
        "import inspect, sys, headcount\n"
        "assert 'roles' in dir(headcount) and 'torch' not in sys.modules\n"
        "import headcount.role.result\n"
        "assert inspect.isfunction(headcount.roles)\n"
        "assert {'run', 'sites', 'save'} <= set(inspect.signature(headcount.roles).parameters)\n"
        "try:\n    headcount.roles('nowhere')\n"
        "except Exception as error:\n    assert type(error).__name__ == 'UserError', error\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_typed_sentences_are_looked_at_and_nothing_is_written(place: Place) -> None:
    folder = place.folder / "run"
    before = sorted(path.name for path in folder.rglob("*"))
    done = call(
        folder, "--text", "the queen sees the king .", "--relations", "none", "--json", "-q"
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["data"]["sentences"] == 1
    assert sorted(path.name for path in folder.rglob("*")) == before
    both = call(folder, "--text", "the queen", "--src", place.source)
    assert isinstance(both.exception, UserError)


def test_the_shipped_model_is_called_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = call("demo", "--text", "I saw the cat .", "--relations", "none", "-q")
    assert done.exit_code == 0, done.output
    assert "layers (rows) by heads (columns)" in done.output
    assert not (resolve_run("demo") / "analysis").exists()


def test_a_kind_that_no_head_has_is_said_with_the_nearest_head() -> None:
    text = "The old woman who lives next door reads the letter that her son has written."
    done = call("demo", "--text", text, "--relations", "none", "-q")
    assert re.search(r"rare words heads\n  none; the nearest:\n  enc\.\d\.\d points", done.output)
    assert "positional heads\n  none" not in done.output


def test_a_text_that_is_too_short_says_so() -> None:
    done = call("demo", "--text", "Hi.", "--relations", "none", "-q")
    assert done.exit_code == 0, done.output
    assert re.search(r"No head meets a role: a text of \d tokens? is too short", done.output)
    assert "layers (rows)" not in done.output  # a grid without a letter


def test_what_has_nothing_to_show_is_a_line_instead_of_a_grid_or_a_table(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    criteria = Criteria(threshold=0.01, margin=0)
    result = name_roles(
        place.folder / "run", conllu=place.conllu, sites="enc,dec", criteria=criteria
    )
    show(result)
    before = capsys.readouterr().out
    assert before.count("layers (rows)") == 2
    assert "Table 1" in before
    for head, entry in result.heads.items():
        entry.roles = [] if head.site == "dec" else entry.roles
    show(replace(result, best=[replace(line, instances=0) for line in result.best]))
    after = capsys.readouterr().out
    assert after.count("layers (rows)") == 1
    assert "Decoder self-attention: no head meets a role." in after
    assert "None of the dependency relations occurs" in after
    assert "Table 1" not in after


def test_what_is_printed_fits_80_columns(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = Console(highlight=False, markup=False, width=80)
    monkeypatch.setattr("headcount.cli.roles_display.results", narrow)
    arguments = [str(place.folder / "run"), "--conllu", str(place.conllu), "--sites"]
    arguments += ["enc,dec,cross", "--threshold", "0.01", "--margin", "0", "--full", "-q"]
    done = CliRunner().invoke(app, ["roles", *arguments])
    assert done.exit_code == 0, done.output
    assert max(map(len, done.output.splitlines())) <= 80
    assert "…" not in done.output.replace("…”", "")  # no heading or cell is cut
    for expected in ("positional heads", "of the two", "Confidence: mean"):
        assert expected in done.output
