"""Benchmarks: fair turns, medians and quartiles, what is measured of every run."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from headcount.bench.runs import Timing, bench, bench_lines, interleaved, peak_memory
from headcount.errors import UserError
from headcount.heads import Head
from headcount.model.gating import remove_heads
from headcount.run import load_run


def test_runs_take_turns() -> None:
    """Every round, in another order each time; the first round is not counted."""
    called: list[int] = []

    def task(number: int) -> int:
        called.append(number)
        if len(called) <= 3:
            time.sleep(0.05)  # slow while it is cold
        return 2

    tasks = [{"work": lambda number=number: task(number)} for number in range(3)]
    found = interleaved(tasks, rounds=3)
    assert called == [0, 1, 2, 1, 2, 0, 2, 0, 1, 0, 1, 2]
    assert all(timing["work"].high < 0.02 for timing in found)


def test_median_and_quartiles() -> None:
    assert Timing.of([5, 1, 3, 2, 4]) == Timing(3, 2, 4)
    assert Timing.of([7]) == Timing(7, 7, 7)


def test_side_by_side(baseline: Path, tmp_path: Path) -> None:
    run = load_run(baseline)
    gone = [*run.model.heads.heads(("enc", "dec")), Head("enc_layers", 0, 1)]
    run.model = remove_heads(run.model, gone)
    run.save(tmp_path / "small")
    lines = ["the cat sees the big dog", "a dog", ""] * 3
    found = bench([baseline, tmp_path / "small"], lines, rounds=2, beam=2, singles=2, memory=False)
    full, small = found
    assert small.heads == {"enc": 0, "dec": 0, "cross": 4}
    assert (full.units, small.units) == ({"enc_ff": 32, "dec_ff": 32}, {"enc_ff": 16, "dec_ff": 32})
    assert small.blocks == {"enc_layers": 3, "dec_layers": 6}
    assert small.parameters < full.parameters
    assert small.file_bytes < full.file_bytes
    assert not small.half
    assert (full.encode_removed, full.translate_removed) == (0, 0)
    assert 0 < small.translate_removed < small.encode_removed < 1
    for each in found:
        assert set(each.timings) == {
            *("encode, batch 1", "encode, batch 64", "greedy, batch 1", "greedy, batch 64"),
            *("beam 2, batch 1", "beam 2, batch 64"),
        }
        assert all(0 < t.low <= t.median <= t.high for t in each.timings.values())
        assert each.to_json()["timings"]["greedy, batch 1"]["median"] > 0


def test_the_shipped_model_is_called_as_it_was_asked_for() -> None:
    only = bench(["demo"], ["a dog"], rounds=1, beam=1, singles=1, memory=False)
    assert [(each.run, each.half) for each in only] == [("demo", True)]


def test_sentences_of_the_runs_own_corpus(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    every = (corpus / "test.en").read_text().splitlines()
    some = bench_lines(baseline, None, 5)
    assert len(some) == 5
    assert some == [line for line in every if line in some], "in their order"
    assert bench_lines(baseline, None, 1000) == every
    own = tmp_path / "mine.txt"
    own.write_text("the cat\n\n")
    assert bench_lines(baseline, own, 5) == ["the cat"]
    shutil.copytree(baseline, tmp_path / "moved")
    config = tmp_path / "moved" / "config.yaml"
    config.write_text(config.read_text().replace(str(corpus), str(tmp_path / "gone")))
    with pytest.raises(UserError, match="--src"):
        bench_lines(tmp_path / "moved", None, 5)
    with pytest.raises(UserError, match="not a run folder"):
        bench_lines(tmp_path / "nothing", None, 5)


def test_sentences_of_a_known_corpus_and_of_packed_files(
    baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADCOUNT_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "run"
    shutil.copytree(baseline, run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["data"] |= {"corpus": "builtin", "folder": None}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    known = bench_lines(run, None, 4)
    (cached,) = (tmp_path / "cache" / "corpora").glob("builtin*")
    assert set(known) <= set((cached / "test.en").read_text().splitlines())
    packed = tmp_path / "packed"
    packed.mkdir()
    for path in cached.glob("*.*"):
        if path.suffix in (".en", ".fr"):
            (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    config["data"] |= {"corpus": None, "folder": str(packed)}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert bench_lines(run, None, 4) == known


@pytest.mark.slow
def test_peak_memory(baseline: Path) -> None:
    peak, above_idle = peak_memory(baseline, ["the cat sees"], beam=2)
    assert 50e6 < peak < 2e9
    assert 0 < above_idle < peak


def test_resident_memory_grows_with_what_is_held() -> None:
    """In a fresh process: here, tests before this one have held more and given it back."""
    code = (
        "from headcount.bench.runs import peak_resident\n"
        "before = peak_resident()\n"
        "held = b'x' * 200_000_000\n"
        "print(peak_resident() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert 150_000_000 < int(done.stdout) < 250_000_000
