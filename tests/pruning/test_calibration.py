"""The model that was chosen is timed, and chosen once more: prices, gains, kills, processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headcount.bench import costs as costs_module
from headcount.bench.costs import Costs, least
from headcount.errors import UserError
from headcount.heads import ALL_SITES, SITES, UNIT_SITES, Head, HeadLayout
from headcount.pruning import calibration, process
from headcount.pruning.calibration import current_costs, fitted
from headcount.pruning.prune import prune
from headcount.pruning.record import is_finished, new_record, read_record
from headcount.pruning.selection import Selection
from headcount.pruning.shape import ShapedHeads, largest_shape
from headcount.pruning.timed import TimedGates
from headcount.run import Run
from headcount.training.metrics import read_metrics
from two_processes import run_in_two_processes

LAYOUT = HeadLayout.full(3, 3, 4, 4, units=(8, 8))
BLOCK = {"enc": 0.2, "enc_ff": 0.1, "dec": 0.4, "cross": 0.3, "dec_ff": 0.2}
UNIT = {"enc": 0.1, "enc_ff": 0.05, "dec": 0.2, "cross": 0.2, "dec_ff": 0.1}


def planted(layout: HeadLayout, engine: str = "headcount") -> Costs:
    """A price list by which about half of the time is not at any site."""
    costs = Costs(engine, 1, 4, 5, True, 1.0, 0.0, BLOCK, UNIT)
    costs = replace(costs, rest=costs.seconds(layout))
    return replace(costs, full=costs.seconds(layout))


def bent(costs: Costs, layout: HeadLayout, power: float) -> Callable[[HeadLayout], float]:
    """True times that are no sum: between the least model's and the full one's, both right.

    With a power above 1 models are faster than their prices say, below 1 slower.
    """
    low = costs.seconds(least(layout, ALL_SITES))

    def seconds(smaller: HeadLayout) -> float:
        share = max(0.0, costs.seconds(smaller) - low) / (costs.full - low)
        return low + (costs.full - low) * share**power

    return seconds


def timed_gates(costs: Costs, speedup: float) -> TimedGates:
    gates = TimedGates(
        LAYOUT.heads(ALL_SITES), torch.device("cpu"), costs=costs, layout=LAYOUT, speedup=speedup,
        updates=100, warmup=0, patience=20, start=2.5,
    )  # fmt: skip
    with torch.no_grad():
        rng = torch.Generator().manual_seed(1)
        gates.logits.copy_(2 * torch.randn(len(gates.heads), generator=rng))
    return gates


def shaped_heads(costs: Costs, speedup: float) -> ShapedHeads:
    weights = dict.fromkeys(LAYOUT.heads((*SITES, *UNIT_SITES)), 1)
    return ShapedHeads(
        LAYOUT.heads(ALL_SITES),
        torch.device("cpu"),
        lambda prices: largest_shape(LAYOUT, ALL_SITES, prices, speedup, weights),
        costs,
        scores={head: float(head.index) for head in LAYOUT.heads(ALL_SITES)},
        updates=10,
        steps=4,
    )


@pytest.mark.parametrize("off", [0.8, 0.95, 1.05, 1.2])
def test_fitted_prices_are_right_for_the_chosen_model_and_one_more(off: float) -> None:
    costs = planted(LAYOUT)
    chosen = LAYOUT.keeping(timed_gates(costs, 1.5).kept(), ALL_SITES)
    speedup = off * costs.speedup(chosen)
    prices = fitted(costs, LAYOUT, chosen, ALL_SITES, speedup)
    assert prices.speedup(chosen) == pytest.approx(speedup, rel=1e-5)
    smallest = least(LAYOUT, ALL_SITES)
    other = LAYOUT if off > 1 else smallest
    assert prices.seconds(other) == pytest.approx(costs.seconds(other), rel=1e-5)
    factor = prices.unit["enc"] / costs.unit["enc"]
    assert factor > 1
    for name in ("unit", "block"):
        expected = {site: factor * price for site, price in getattr(costs, name).items()}
        assert getattr(prices, name) == pytest.approx(expected)
    assert prices.full == costs.full


@pytest.mark.parametrize("speedup", [0.01, 0.9, 30.0, math.inf])
def test_times_that_no_model_can_have_are_noise(speedup: float) -> None:
    """They count as the full model's time, or as that of the one without anything at the sites."""
    costs = planted(LAYOUT)
    chosen = LAYOUT.keeping(timed_gates(costs, 1.4).kept(), ALL_SITES)
    prices = fitted(costs, LAYOUT, chosen, ALL_SITES, speedup)
    nearest = LAYOUT if speedup < 1 else least(LAYOUT, ALL_SITES)
    assert prices.seconds(chosen) == pytest.approx(costs.seconds(nearest), rel=1e-5)
    again = timed_gates(prices, 1.4).kept()
    assert 0 < len(again) < len(LAYOUT.heads(ALL_SITES))


@pytest.mark.parametrize("speedup", [0.5, 1.0, 1.7, 5.0])
def test_there_is_nothing_to_fit_where_everything_or_nothing_stays(speedup: float) -> None:
    costs = planted(LAYOUT)
    nothing = least(LAYOUT, ALL_SITES)
    assert fitted(costs, LAYOUT, nothing, ALL_SITES, speedup) == costs
    prices = fitted(costs, LAYOUT, LAYOUT, ALL_SITES, speedup)
    assert prices.seconds(LAYOUT) == pytest.approx(costs.full)
    assert prices.seconds(nothing) == pytest.approx(costs.seconds(nothing))
    free = replace(costs, block={}, unit={}, rest=costs.full)  # parts that cost nothing
    assert fitted(free, LAYOUT, nothing, ALL_SITES, speedup) == free


@pytest.mark.parametrize("make", [timed_gates, shaped_heads])
@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
@pytest.mark.parametrize("power", [0.6, 0.8, 1.25, 1.6])
@pytest.mark.parametrize("speedup", [1.2, 1.5])
def test_what_is_chosen_by_fitted_prices_is_closer_to_the_target(
    make: Callable[[Costs, float], Selection], engine: str, power: float, speedup: float
) -> None:
    costs = planted(LAYOUT, engine)
    seconds = bent(costs, LAYOUT, power)
    selection = make(costs, speedup)

    def chosen() -> tuple[HeadLayout, float]:
        layout = LAYOUT.keeping(selection.kept(), ALL_SITES)
        return layout, costs.full / seconds(layout)

    first, measured = chosen()
    selection.reprice(fitted(costs, LAYOUT, first, ALL_SITES, measured))
    second, again = chosen()
    assert (again < measured) == (power > 1), "more stays where models are faster than priced"
    assert second != first
    assert abs(again - speedup) < 0.5 * abs(measured - speedup)
    assert again > 0.95 * speedup


def test_shapes_stay_as_they_are_where_none_is_fast_enough() -> None:
    costs = planted(LAYOUT)
    shaped = shaped_heads(costs, 1.3)
    before = shaped.kept()
    assert before
    shaped.reprice(replace(costs, rest=100.0))
    assert shaped.kept() == before


QUICK = {"updates": 10, "finetune": 3, "bleu_sentences": 4, "gate_learning_rate": 0.5}
WAYS = {
    "timed": {**QUICK, "speedup": 1.3, "by": "timed", "ff_block": 2},
    "shape": {**QUICK, "speedup": 1.3, "by": "shape", "ff_block": 2},
}


def clock(runs: Sequence[Run], *_: Any, **__: Any) -> list[float]:
    """Times of models that are faster than a sum of prices says; nothing depends on the machine."""
    everything = runs[0].model.heads
    return [bent(planted(everything), everything, 1.5)(run.model.heads) for run in runs]


@pytest.fixture
def fake_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (costs_module, calibration):
        monkeypatch.setattr(module, "time_runs", clock)


@pytest.mark.parametrize("way", WAYS)
def test_a_pruning_says_how_fast_its_first_choice_was(
    way: str, fake_clock: None, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    run = prune(baseline, corpus, tmp_path / "out", **WAYS[way])
    record = read_record(tmp_path / "out")
    calibrated, speed = record["calibrated"], record["speed"]
    first = HeadLayout.from_json(calibrated["heads"], "pruning.json")
    assert calibrated["promised"] == pytest.approx(Costs(**record["costs"]).speedup(first))
    assert calibrated["measured"] > calibrated["promised"] >= 1.3
    assert speed["promised"] == current_costs(record).speedup(run.model.heads)
    assert 1.3 * 0.95 <= speed["measured"] <= calibrated["measured"]
    assert record["costs"] != calibrated["costs"]
    if way == "timed":  # shapes of a model as small as this one come in large steps
        assert speed["measured"] - 1.3 < 0.5 * (calibrated["measured"] - 1.3)
        assert {Head.parse(head) for head in record["kept"]} > set(first.heads(ALL_SITES))


class Killed(Exception):
    """Stands for a kill: nothing of the package catches it."""


def die(*_: Any, **__: Any) -> None:
    raise Killed


@pytest.fixture(scope="module")
def whole(
    baseline: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """One pruning of each kind that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for module in (costs_module, calibration):
            patch.setattr(module, "time_runs", clock)
        for way, settings in WAYS.items():
            prune(baseline, corpus, folder / way, **settings)
    return {way: folder / way for way in WAYS}


STATIONS = {
    "before it is timed": "process.calibrate",
    "while it is timed": "calibration.fitted",
    "once it is noted": "process.read_record",
    "before it is cut": "process.remove_heads",
    "while the result is timed": "prune.compare_speed",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("where", ["update 1", "update 6", "update 9", *STATIONS])
def test_killed_and_resumed_equals_not_killed(
    way: str,
    where: str,
    whole: dict[str, Path],
    fake_clock: None,
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def observe(line: dict[str, Any]) -> None:
        if where == f"update {line['update']}":
            raise Killed

    out = tmp_path / "parts"
    with monkeypatch.context() as patch:
        if where in STATIONS:
            patch.setattr(f"headcount.pruning.{STATIONS[where]}", die)
        with pytest.raises(Killed):
            prune(baseline, corpus, out, **WAYS[way], observe=observe)
    assert not is_finished(out)
    if read_record(out)["calibrated"]:
        monkeypatch.setattr(process, "calibrate", None)  # once is enough
    prune(baseline, corpus, out, **WAYS[way], resume=True)
    records = [read_record(folder) for folder in (whole[way], out)]
    for record in records:
        del record["progress"]["seconds"]
    assert records[0] == records[1]
    one, other = (load_file(folder / "model.safetensors") for folder in (whole[way], out))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("update", [6, 9])
def test_one_that_an_earlier_version_began_goes_on_as_it_was(
    way: str,
    update: int,
    fake_clock: None,
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first choice stays: what trains has been masked, or cut, by that one."""

    def old_record(*arguments: Any) -> dict[str, Any]:
        record = new_record(*arguments)
        del record["calibrated"]
        return record

    def observe(line: dict[str, Any]) -> None:
        if line["update"] == update:
            raise Killed

    monkeypatch.setattr(process, "calibrate", None)
    with monkeypatch.context() as patch:
        patch.setattr("headcount.pruning.prune.new_record", old_record)
        with pytest.raises(Killed):
            prune(baseline, corpus, tmp_path / "out", **WAYS[way], observe=observe)
    run = prune(baseline, corpus, tmp_path / "out", **WAYS[way], resume=True)
    record = read_record(tmp_path / "out")
    assert "calibrated" not in record
    assert record["speed"]["promised"] == Costs(**record["costs"]).speedup(run.model.heads)


def test_a_damaged_calibration_is_refused(whole: dict[str, Path], tmp_path: Path) -> None:
    record = read_record(whole["timed"])
    record["calibrated"]["costs"]["full"] = 0
    (tmp_path / "pruning.json").write_text(json.dumps(record))
    with pytest.raises(
        UserError, match=r"pruning\.json does not .* calibrated\.costs: prices must"
    ):
        read_record(tmp_path)


SCRIPT = """
import os
import sys
from pathlib import Path

sys.path[:0] = sys.argv[1:3]
from headcount.distribution import connect
from test_calibration import WAYS, calibration, clock, costs_module, prune

leader = os.environ["RANK"] == "0"
fails = sys.argv[3] == "fails"


def turns(runs, *_, **__):
    assert leader, "one process alone has the clock"
    if fails:
        raise RuntimeError("the leader has failed")
    return clock(runs)


costs_module.time_runs = clock
calibration.time_runs = turns
baseline, corpus, out = map(Path, sys.argv[4:7])
with connect() as workers:
    for way in sys.argv[7:]:
        prune(baseline, corpus, out / way, **WAYS[way], resume=True, workers=workers)
"""


def in_two_processes(tmp_path: Path, how: str, *arguments: object) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = Path(__file__).parent
    run_in_two_processes(script, here, here.parent, how, *arguments)


@pytest.mark.slow
def test_two_processes_equal_one(
    whole: dict[str, Path], baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    """The leader has the clock, and both choose by its prices; where it fails, both end."""
    with pytest.raises(AssertionError, match=r"Root Cause .*\n\[0\]"):
        in_two_processes(tmp_path, "fails", baseline, corpus, tmp_path, "timed")
    assert read_record(tmp_path / "timed")["calibrated"] is None
    in_two_processes(tmp_path, "works", baseline, corpus, tmp_path, *WAYS)
    for way in WAYS:
        one, two = (read_record(folder) for folder in (whole[way], tmp_path / way))
        for name in ("kept", "calibrated", "costs", "speed"):
            assert one[name] == two[name]
        kinds = [
            [line["kind"] for line in read_metrics(folder / "metrics.jsonl")]
            for folder in (whole[way], tmp_path / way)
        ]
        assert kinds[0] == kinds[1]
