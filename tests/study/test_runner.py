"""Stages: done ones are never repeated, killed ones go on, changed inputs are made anew."""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

import pytest

from headcount.cli import study as study_command
from headcount.cli.console import remarks
from headcount.cli.study import stage_lines
from headcount.errors import UserError
from headcount.study.stages import Book, Runner, Stage, choose

TASK = """
import os, pathlib, sys, time
out, note, delay = pathlib.Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
with (out.parent / "calls.txt").open("a") as log:
    log.write(f"{out.name} {note} {' '.join(sys.argv[4:])}".strip() + chr(10))
time.sleep(delay)
if note == "fail":
    sys.exit("headcount: this stage cannot work.")
if note == "raise":
    from headcount.errors import UserError
    raise UserError("this stage cannot work.", "Try another one.")
if note.startswith("code"):
    sys.exit(int(note[4:]))
if note.startswith("signal"):
    os.kill(os.getpid(), int(note[6:]))
out.write_text(note)
"""


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that a stage can run; its calls are counted in `calls.txt`."""
    (tmp_path / "stage_task.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return tmp_path


def make(
    task: Path, name: str, note: str = "x", needs: tuple[str, ...] = (), delay: float = 0,
    reads: tuple[Path, ...] = (), resume: tuple[str, ...] = (),
) -> Stage:  # fmt: skip
    out = task / name
    command = ("stage_task", str(out), note, str(delay))
    return Stage(name, "test", command, (out,), needs, reads, resume)


def calls(task: Path) -> list[str]:
    path = task / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def run(task: Path, *stages: Stage, jobs: int = 1) -> Book:
    book = Book.open(task / "study", stages)
    Runner(book, list(book.stages), jobs).run()
    return book


def test_runs_in_order_and_repeats_nothing(task: Path) -> None:
    stages = [make(task, "a"), make(task, "b", needs=("a",))]
    book = run(task, *stages)
    assert calls(task) == ["a x", "b x"]
    assert all(book.done(name) for name in "ab")
    run(task, *stages)
    assert calls(task) == ["a x", "b x"]


def test_without_a_terminal_each_stage_says_that_it_begins_and_ends(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(remarks, "print", lambda line, **_: lines.append(line))
    run(task, make(task, "a"))
    stages = [make(task, "a"), *(make(task, name, needs=("a",), delay=0.5) for name in "bc")]
    book = Book.open(task / "study", stages)
    runner = Runner(book, list(book.stages))
    runner.run(stage_lines(runner))
    times, said = zip(*(line.split(" ", 1) for line in lines), strict=True)
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d", each) for each in times)
    # Nothing about stage a, which had been done before.
    assert [re.sub(r"\d+:\d\d", "0:00", each) for each in said] == [
        "b: test, 2 of 3",
        "b: done in 0:00",
        "c: test, 3 of 3",
        "c: done in 0:00",
    ]


def test_without_a_terminal_a_long_stage_is_not_silent(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(remarks, "print", lambda line, **_: lines.append(line.split(" ", 1)[1]))
    monkeypatch.setattr(study_command, "QUIET_SECONDS", 0.4)
    book = Book.open(task / "study", [make(task, "a", delay=1.5)])
    runner = Runner(book, list(book.stages))
    runner.run(stage_lines(runner))
    between = lines[1:-1]
    assert 1 <= len(between) <= 4
    assert all(re.fullmatch(r"a: 0:0\d of about \d+:\d\d", line) for line in between)


def test_a_changed_input_repeats_what_depends_on_it(task: Path) -> None:
    recipe = task / "recipe.yaml"
    recipe.write_text("one")

    def stages() -> list[Stage]:
        first = make(task, "a", reads=(recipe,))
        return [first, make(task, "b", needs=("a",)), make(task, "c")]

    run(task, *stages())
    recipe.write_text("two")
    run(task, *stages())
    assert calls(task) == ["a x", "b x", "c x", "a x", "b x"]


def test_a_lost_result_is_made_again(task: Path) -> None:
    run(task, make(task, "a"))
    (task / "a").unlink()
    run(task, make(task, "a"))
    assert calls(task) == ["a x", "a x"]


def test_a_killed_stage_goes_on_with_resume(task: Path) -> None:
    stage = make(task, "a", delay=30, resume=("--resume",))
    book = Book.open(task / "study", [stage])
    runner = Runner(book, ["a"])

    def interrupt() -> None:
        if calls(task):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run(interrupt)
    assert runner.running[0].process.poll() is not None
    assert not book.done("a")
    again = Book.open(task / "study", [stage])
    assert again.begin("a")[-1] == "--resume"
    other = make(task, "a", note="y", resume=("--resume",))
    assert "--resume" not in Book.open(task / "study", [other]).begin("a")


@pytest.mark.parametrize("note", ["fail", "raise"])
def test_a_failed_stage_names_its_reason_and_log(task: Path, note: str) -> None:
    with pytest.raises(UserError, match=r"Stage a failed: this stage cannot work\.") as error:
        run(task, make(task, "a", note=note), make(task, "b", needs=("a",)))
    assert ".log" in str(error.value)
    assert calls(task) == [f"a {note}"]


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("code143", r"was interrupted \(SIGTERM\)"),
        ("signal15", r"was interrupted \(SIGTERM\)"),
        ("code130", r"was interrupted \(SIGINT\)"),
        ("code0", "ended before its work was complete"),
        ("code2", "failed"),
    ],
)
def test_an_interrupted_stage_is_not_done_and_goes_on(task: Path, note: str, said: str) -> None:
    stage = make(task, "a", note=note, resume=("--resume",))
    with pytest.raises(UserError, match=rf"Stage a {said}.*continues"):
        run(task, stage)
    book = Book.open(task / "study", [stage])
    assert not book.done("a")
    assert book.begin("a")[-1] == "--resume"


def test_a_training_or_pruning_is_done_when_it_says_so(tmp_path: Path) -> None:
    """An earlier version stamped a training that was cut short: it is found out, and resumed."""
    folder = tmp_path / "run"
    folder.mkdir()
    for kind, file, unfinished, finished in (
        ("train", "metrics.jsonl", '{"kind": "train", "update": 11}\n',
         '{"kind": "train", "update": 11}\n{"kind": "final", "update": 30}\n'),
        ("prune", "pruning.json", '{"finished": false}', '{"finished": true}'),
    ):  # fmt: skip
        stage = Stage(kind, kind, ("module",), (folder,), resume=("--resume",))
        book = Book.open(tmp_path / "study", [stage])
        book.begin(kind)
        folder.mkdir(exist_ok=True)
        book.end(kind)
        assert not book.done(kind)
        (folder / file).write_text(unfinished)
        assert not book.done(kind)
        assert book.begin(kind)[-1] == "--resume"
        (folder / file).write_text(finished)
        book.end(kind)
        assert book.done(kind)
        shutil.rmtree(folder)
        assert not book.done(kind)
        assert "--resume" not in book.begin(kind), "there is nothing to go on with"


def test_independent_stages_run_side_by_side(task: Path) -> None:
    book = Book.open(task / "study", [make(task, "a", delay=1.5), make(task, "b", delay=1.5)])
    runner = Runner(book, ["a", "b"], jobs=2)
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, len(runner.running))

    runner.run(watch)
    assert most == 2


def test_choosing_takes_what_is_needed(task: Path) -> None:
    stages = [make(task, "a"), make(task, "b", needs=("a",)), make(task, "c")]
    book = Book.open(task / "study", stages)
    assert choose(book, only=["b"]) == ["a", "b"]
    assert choose(book, only=["[bc]"]) == ["a", "b", "c"]
    assert choose(book, until="a") == ["a"]
    assert choose(book) == ["a", "b", "c"]
    with pytest.raises(UserError, match="No stage is called 'z'"):
        choose(book, only=["z"])


def test_estimates_learn_from_stages_of_the_same_kind(task: Path) -> None:
    stages = [make(task, "a", delay=0.5), make(task, "b")]
    book = Book.open(task / "study", stages)
    assert book.estimate("b") == 60.0
    began = time.monotonic()
    Runner(book, ["a"]).run()
    assert 0.4 < book.estimate("b") <= time.monotonic() - began + 0.5
