"""A whole study from one recipe: the command, killed on the way, then gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headcount.cli import main

RECIPE = """
data: {corpus: builtin, source_vocabulary: 300, target_vocabulary: 300}
model: {encoder_layers: 2, decoder_layers: 1, heads: 2, width: 16, ff_width: 32}
training: {updates: 20, batch_tokens: 400, device_tokens: 400, warmup: 10, log_every: 5,
           evaluate_every: 10, save_every: 10, dev_sentences: 20, bleu_sentences: 0,
           average_checkpoints: 0}
"""
STUDY = """
pairs: [{name: en-fr, domain: grammar, recipe: train.yaml}]
analysis: {rank_sentences: 4, role_sentences: 20, score_sentences: 10, sites: enc}
pruning: {updates: 12, encoder_penalties: [0.05]}
bench: false
"""


def command(folder: Path, *more: str) -> list[str]:
    study = [sys.executable, "-m", "headcount", "study", str(folder / "study.yaml")]
    return [*study, "--out", str(folder / "out"), *more]


@pytest.mark.slow
def test_a_study_is_killed_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(RECIPE)
    (tmp_path / "study.yaml").write_text(STUDY)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEADCOUNT_CACHE": str(tmp_path / "cache")}
    plan = subprocess.run(
        command(tmp_path, "--dry-run", "--json"), env=environment, capture_output=True, check=True
    )
    stages = [stage["stage"] for stage in json.loads(plan.stdout)["stages"]]
    assert "en-fr/enc-penalty-0.05/roles" in stages
    assert not (tmp_path / "out").exists()

    first = subprocess.Popen(command(tmp_path, "--jobs", "2"), env=environment)
    stamps = tmp_path / "out" / "stages"
    deadline = time.monotonic() + 200
    while not (stamps / "en-fr--full--score.json").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = {
        path: path.stat().st_mtime_ns
        for path in stamps.glob("*.json")
        if "seconds" in json.loads(path.read_text())
    }
    assert len(done) >= 2

    again = subprocess.run(
        command(tmp_path, "--jobs", "2"), env=environment, capture_output=True, timeout=400
    )
    assert again.returncode == 0, again.stderr.decode()[-2000:]
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in done.items())
    for name in ("report.html", "claims.json", "study.json", "scores/en-fr-full.json"):
        assert (tmp_path / "out" / name).is_file(), name
    pruned = json.loads((tmp_path / "out/runs/en-fr-enc-penalty-0.05/pruning.json").read_text())
    assert pruned["finished"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds the stage's process in /proc")
def test_a_training_that_was_told_to_stop_is_not_done(tmp_path: Path) -> None:
    """SIGTERM to the stage alone: the study stops, and the same command trains to the end."""
    (tmp_path / "train.yaml").write_text(RECIPE.replace("updates: 20", "updates: 400"))
    (tmp_path / "study.yaml").write_text(STUDY)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HEADCOUNT_CACHE": str(tmp_path / "cache")}
    until = command(tmp_path, "--until", "en-fr/full")
    study = subprocess.Popen(until, env=environment, stderr=subprocess.PIPE, text=True)
    run = tmp_path / "out" / "runs" / "en-fr-full"
    deadline = time.monotonic() + 200
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    children = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGTERM)
    _, said = study.communicate(timeout=100)
    assert study.returncode == 2, said
    assert "en-fr/full" in said
    assert "same command continues" in " ".join(said.split())
    stamp = tmp_path / "out" / "stages" / "en-fr--full.json"
    assert "seconds" not in json.loads(stamp.read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["update"] < 400

    done = subprocess.run(until, env=environment, capture_output=True, timeout=400)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert "seconds" in json.loads(stamp.read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (lines[-1]["kind"], lines[-1]["update"]) == ("final", 400)
    logged = [line["update"] for line in lines if line["kind"] == "train"]
    assert logged == list(range(5, 401, 5)), "resumed, not begun anew"


def test_corpora_that_cannot_be_mixed_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.yaml").write_text(RECIPE.replace("builtin", "[builtin, tatoeba-en-uk]"))
    (tmp_path / "study.yaml").write_text(STUDY)
    here = {"study.yaml", "train.yaml"}
    estimate = ["train", str(tmp_path / "train.yaml"), "--estimate"]
    for words in (command(tmp_path)[3:], estimate):
        monkeypatch.setattr("sys.argv", ["headcount", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert "tatoeba-en-uk" in line
        assert {path.name for path in tmp_path.iterdir()} == here
