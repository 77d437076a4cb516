"""Sweeps over speed-ups, and over several kinds of things at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import headcount.bench.costs as costs_module
import headcount.pruning.calibration as calibration_module
from headcount.cli import main
from headcount.cli.prune_display import sweep_table
from headcount.errors import UserError
from headcount.heads import HeadLayout
from headcount.pruning.record import read_record
from headcount.pruning.sweep import Item, parse_keeps, prune_sweep, sweep_items
from headcount.run import Run

COMMON: dict[str, Any] = {
    "sites": "enc,enc_ff,enc_layers",
    "updates": 6,
    "finetune": 2,
    "bleu_sentences": 0,
    "gate_learning_rate": 0.5,
}
SIZES = ("enc", "enc_ff", "enc_layers", "dec_layers")


def size(layout: HeadLayout) -> float:
    """Seconds of a model that is as slow as it is large."""
    return 2.0 + sum(layout.count(site) for site in SIZES)


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A clock that goes by size, so that nothing depends on the machine; and what used it."""
    used = []
    for module in (costs_module, calibration_module):

        def clock(runs: Sequence[Run], *_: Any, name: str = module.__name__, **__: Any):
            used.append(name.rsplit(".", 1)[-1])
            return [size(run.model.heads) for run in runs]

        monkeypatch.setattr(module, "time_runs", clock)
    return used


def test_items_with_speedups() -> None:
    made = sweep_items([0.1], [4], ["shape", "random"], speedups=[1.5, 2.0], engine="ctranslate2")
    assert [item.name for item in made] == [
        "penalty-0.1-seed1", "keep-4-random-seed1", "speedup-1.5-shape-seed1",
        "speedup-2-shape-seed1",
    ]  # fmt: skip
    assert [item.settings.engine for item in made] == [None, None, "ctranslate2", "ctranslate2"]
    [alone] = sweep_items([], [], speedups=[1.5])
    assert (alone.name, alone.settings.method.name) == ("speedup-1.5-timed-seed1", "timed")
    assert "dec_layers" in alone.settings.sites
    for given, said in (
        ({"by": ["shape"], "keeps": [4]}, "--by shape needs a speed-up"),
        ({"by": ["lrp"], "speedups": [1.5]}, "--by lrp needs a number of heads"),
        ({"keeps": [4], "engine": "ctranslate2"}, "--engine and --batch say where a speed-up"),
    ):
        with pytest.raises(UserError, match=said):
            sweep_items(**({"penalties": [], "keeps": []} | given))


def test_numbers_of_heads_and_units() -> None:
    assert parse_keeps("4,8") == [4, 8]
    keeps = parse_keeps("enc=2, enc_ff=1; enc=3,enc_ff=0;")
    items = sweep_items([], keeps, ["random"])
    assert [item.name for item in items] == [
        "keep-enc2-enc_ff1-random-seed1", "keep-enc3-enc_ff0-random-seed1",
    ]  # fmt: skip
    assert items[0].settings.keep == {"enc": 2, "enc_ff": 1}
    with pytest.raises(UserError, match="are not counted together"):
        sweep_items([], [4], sites="enc,enc_ff")


def test_prices_are_measured_once_for_all(
    timings: list[str], baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    def items(*speedups: float) -> list[Item]:
        return sweep_items([], [], ["timed", "shape"], speedups=speedups, **COMMON)

    prune_sweep(baseline, corpus, tmp_path, items(1.2, 1.4))
    assert timings == ["costs", *["calibration"] * 8], "each first choice and result was timed"
    rows = prune_sweep(baseline, corpus, tmp_path, items(1.2, 1.3, 1.4))
    assert timings.count("costs") == 1, "a larger sweep has the same prices"
    lists = [read_record(tmp_path / item.name)["costs"] for item in items(1.2, 1.3, 1.4)]
    assert all(each == lists[0] for each in lists)
    assert [row["asked"] for row in rows] == [None, 1.2, 1.3, 1.4, 1.2, 1.3, 1.4]
    for row in rows[1:]:
        assert row["promised"] >= row["asked"]
        assert row["measured"] == pytest.approx(row["promised"], rel=1e-4)
    assert "asked,promised,measured" in (tmp_path / "sweep.csv").read_text().splitlines()[0]
    assert sweep_table(rows).columns[-1].header == "  measured\n(promised)"
    picture = (tmp_path / "sweep.svg").read_text()
    assert picture.count('<g id="axes_') == 2


def test_a_target_out_of_reach_stops_the_sweep_before_it_begins(
    timings: list[str],
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--speedups", "1.2,50", "--sites", "enc,enc_ff", "--out", tmp_path / "out"]
    command = ["headcount", "prune-sweep", baseline, "--train", corpus, *options, "--quiet"]
    monkeypatch.setattr("sys.argv", list(map(str, command)))
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "--speedup 50: without anything at enc,enc_ff" in line
    assert not (tmp_path / "out").exists()


def test_prices_of_another_baseline_are_not_taken(
    timings: list[str], baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    [item] = sweep_items([], [], speedups=[1.2], **COMMON)
    prune_sweep(baseline, corpus, tmp_path, [item])
    path = tmp_path / "prices.json"
    [(key, costs)] = json.loads(path.read_text()).items()
    path.write_text(json.dumps({key.replace('"weights": "', '"weights": "0'): costs}))
    prune_sweep(baseline, corpus, tmp_path, [item])
    assert timings.count("costs") == 2
    path.write_text(json.dumps({key: costs | {"full": 0}}))
    with pytest.raises(UserError, match=r"prices\.json does not hold what it should"):
        prune_sweep(baseline, corpus, tmp_path, [item])
