"""The verbs on the command line: what they print."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headcount.cli import app, main
from headcount.run import load_run

Say = Callable[..., str]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    """Run a command that must succeed; what it printed as a result."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["headcount", *map(str, arguments)])
        main()  # what fails ends with SystemExit
        return capsys.readouterr().out

    return run


def test_prune_and_bench(
    say: Say, baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Starting processes takes long; `test_peak_memory` does it.
    monkeypatch.setattr("headcount.bench.runs.peak_memory", lambda *_: (9, 5))
    out = tmp_path / "out"
    arguments = ("prune", baseline, "--train", corpus, "--out", out, "--updates", 3)
    record = json.loads(say(*arguments, "--keep", 2, "--sites", "enc,dec", "--json", "--quiet"))
    assert record["run"] == str(out)
    assert len(record["kept"]) == 2
    assert record["warnings"] == []
    text = say(*arguments, "--keep", 2, "--sites", "enc,dec", "--resume", "--quiet")
    assert "heads left" in text
    assert re.search(r"cross +4 of 4", text)
    by_layer = re.findall(r"layer \d: (.*)", text)
    assert len(by_layer) == 4, "of the pruned sites alone"
    kept = [
        f"{site}.{layer}.{head}"
        for (site, layer), heads in zip(
            [("enc", 0), ("enc", 1), ("dec", 0), ("dec", 1)], by_layer, strict=True
        )
        for head in heads.split()
        if head != "none"
    ]
    assert kept == record["kept"]
    found = json.loads(say("bench", baseline, out, "--rounds", 1, "--sentences", 4, "--json"))
    assert [each["heads"]["cross"] for each in found] == [4, 4]
    assert found[1]["parameters"] == sum(p.numel() for p in load_run(out).model.parameters())
    assert found[1]["peak_bytes"] == 9


def test_quiet_commands_still_say_what_changes_a_result(
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["prune", baseline, "--train", corpus, "--out", tmp_path / "out", "--updates", 3]
    arguments += ["--penalty", 0.01, "--quiet"]
    monkeypatch.setattr("sys.argv", ["headcount", *map(str, arguments)])
    main()
    first, *_, last = capsys.readouterr().err.strip().splitlines()
    assert "will hardly remove anything" in first
    assert "No head was removed: all 4 at enc are still open" in last


def test_sweep(say: Say, baseline: Path, corpus: Path, tmp_path: Path) -> None:
    arguments = ("prune-sweep", baseline, "--train", corpus, "--out", tmp_path / "s")
    more = ("--keep", "0,1", "--by", "random", "--updates", 0)
    rows = json.loads(say(*arguments, *more, "--json", "--quiet"))
    assert [row["name"] for row in rows] == [
        *("baseline", "keep-0-random-seed1", "keep-1-random-seed1")
    ]
    lines = say(*arguments, *more, "--quiet").splitlines()
    assert [line.split()[:4] for line in lines if "seed1" in line] == [
        ["keep-0-random-seed1", "0", "4", "4"],
        ["keep-1-random-seed1", "1", "4", "4"],
    ]


def test_a_sweep_has_one_table_whatever_the_number_of_processes(
    say: Say, baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    arguments = ("prune-sweep", baseline, "--train", corpus, "--out", tmp_path / "s")
    assert say(*arguments, "--keep", "1", "--by", "random", "--updates", 0, "--json") == ""


def test_every_verb_has_help() -> None:
    names = {command.name for command in app.registered_commands}
    assert {"prune", "prune-sweep", "bench"} <= names


@pytest.mark.slow
def test_a_signal_saves_and_says_how_to_go_on(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    """SIGTERM in the middle of training, then the same command with --resume."""
    command = [sys.executable, "-m", "headcount", "prune", baseline, "--train", corpus]
    command += ["--out", tmp_path / "out", "--keep", "1", "--updates", "90"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [str(part) for part in command]
    process = subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "out" / "metrics.jsonl"
    for _ in range(6000):
        if metrics.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, printed = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, printed
    again = shlex.join(["headcount", *arguments[3:], "--resume"])
    assert f"Continue with: {again}" in printed
    assert not (tmp_path / "out" / "config.yaml").exists()
    done = subprocess.run(
        [*arguments, "--resume"], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"enc +1 of 4", done.stdout)
