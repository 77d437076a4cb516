"""Pruning by time: expectations against all models, choices that keep promises, refusals, plans."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from headcount.bench import costs as costs_module
from headcount.bench.costs import Costs, Size, totals
from headcount.cli import main
from headcount.errors import Notice, UserError
from headcount.heads import ALL_SITES, BLOCKS, Head, HeadLayout
from headcount.model.arithmetic import count_parameters
from headcount.pruning import calibration as calibration_module
from headcount.pruning import timed as timed_module
from headcount.pruning.plan import make_plan, with_numbers, with_share
from headcount.pruning.prune import prune
from headcount.pruning.record import read_record, remarks_on
from headcount.pruning.timed import TimedGates
from headcount.run import Run, load_run

SITES = ("enc", "enc_layers")
LAYOUT = HeadLayout.full(2, 1, 2, 1, units=(1, 1))
BLOCK = {"enc": 0.5, "enc_ff": 1.0, "dec": 0.1, "cross": 0.1, "dec_ff": 0.1}
UNIT = {"enc": 0.3, "enc_ff": 0.2, "dec": 0.1, "cross": 0.1, "dec_ff": 0.1}


def price(layout: HeadLayout) -> float:
    return 2 + sum(
        BLOCK[site] * (len(units) > 0) + UNIT[site] * len(units)
        for site in BLOCK
        for units in layout.layers[site]
    )


def make_gates(speedup: float, engine: str = "headcount", updates: int = 100) -> TimedGates:
    costs = Costs(engine, 1, 4, 5, True, price(LAYOUT), 2.0, BLOCK, UNIT)
    return TimedGates(
        LAYOUT.heads(SITES),
        torch.device("cpu"),
        costs=costs,
        layout=LAYOUT,
        speedup=speedup,
        updates=updates,
        warmup=0,
        patience=20,
        start=2.5,
    )


def test_expected_time_is_the_mean_over_all_models() -> None:
    gates = make_gates(1.5)
    with torch.no_grad():
        gates.logits.copy_(
            torch.randn(len(gates.heads), generator=torch.Generator().manual_seed(1))
        )
    probabilities = gates.distribution.open_probability(gates.logits.detach()).double()
    mean = 0.0
    for state in product((0, 1), repeat=len(gates.heads)):
        there = torch.tensor(state)
        weight = float(torch.where(there > 0, probabilities, 1 - probabilities).prod())
        kept = [head for head, on in zip(gates.heads, state, strict=True) if on]
        mean += weight * price(LAYOUT.keeping(kept, SITES))
    assert float(gates.time().detach()) == pytest.approx(mean / price(LAYOUT), rel=1e-4)


@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
@pytest.mark.parametrize("seed", range(4))
def test_every_choice_keeps_the_promise_and_wastes_nothing(engine: str, seed: int) -> None:
    gates = make_gates(1.4, engine)
    with torch.no_grad():
        gates.logits.copy_(
            torch.randn(len(gates.heads), generator=torch.Generator().manual_seed(seed))
        )
    kept = gates.kept()
    costs = gates.costs

    def share(heads: Sequence[Any]) -> float:
        return costs.seconds(LAYOUT.keeping(heads, SITES)) / costs.full

    assert share(kept) <= 1 / 1.4 + 1e-6
    for head in gates.closed():
        if head.site in SITES[:-1]:
            block = Head("enc_layers", head.layer, 0)
            assert share([*kept, block, head]) > 1 / 1.4, f"there was time for {head}"


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_most_probably_there_stays(engine: str, moves: bool, seed: int) -> None:
    """Against trying all choices: of those in time, the first by the order of probabilities."""
    speedup = (1.2, 1.5, 1.9)[seed % 3]
    gates = make_gates(speedup, engine)
    gates.costs = replace(gates.costs, moves=moves)
    gates.costs = replace(gates.costs, full=gates.costs.seconds(LAYOUT))
    with torch.no_grad():
        gates.logits.copy_(
            3 * torch.randn(len(gates.heads), generator=torch.Generator().manual_seed(seed))
        )
    p = gates.distribution.open_probability(gates.logits.detach()).tolist()
    own = dict(zip(gates.heads, p, strict=True))
    # Heads with their blocks; the feed-forward blocks, whose units have no gates.
    there = {head: own[head] for head in gates.heads if head.site == "enc"}
    there = {h: each * own[Head("enc_layers", h.layer, 0)] for h, each in there.items()}
    there |= {h: own[h] for h in gates.heads if h.site == "enc_layers" and h.index == 1}
    order = sorted(there, key=lambda head: -there[head])

    def layout(state: Sequence[int]) -> HeadLayout:
        stays = [head for head, on in zip(order, state, strict=True) if on]
        blocks = [Head("enc_layers", head.layer, 0) for head in stays if head.site == "enc"]
        return LAYOUT.keeping([*stays, *blocks], SITES)

    in_time = (
        state
        for state in product((1, 0), repeat=len(order))
        if gates.costs.speedup(layout(state)) >= speedup * (1 - 1e-6)
    )
    nothing = (0,) * len(order)  # where no choice is in time
    expected = layout(next(in_time, nothing))  # the first: product counts down
    assert gates.kept() == expected.heads(SITES)
    assert gates.metrics()["open"] == len(gates.kept())


def test_a_block_is_not_lost_to_heads_that_were_taken_before_it() -> None:
    """Heads of a block that is closed cost nothing: they must not be what closes it."""
    gates = make_gates(1.3)
    likely = {"enc.0.0": 6.0, "enc.0.1": 5.0, "enc_layers.0.0": 4.0}
    with torch.no_grad():
        gates.logits.copy_(torch.tensor([likely.get(str(head), -1.0) for head in gates.heads]))
    tight = gates.costs.seconds(LAYOUT.keeping([Head.parse(n) for n in likely if n != "enc.0.1"],
                                               SITES))  # fmt: skip
    gates.goal = tight / gates.costs.full + 1e-6
    assert [str(head) for head in gates.kept()] == ["enc.0.0", "enc_layers.0.0"]


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("engine", ["headcount", "ctranslate2"])
@pytest.mark.parametrize("lost", ["enc_layers.0.0", "enc_layers.1.1", "enc_layers.1", "enc_layers"])
def test_models_that_have_lost_blocks_are_priced_as_they_are(
    engine: str, moves: bool, lost: str
) -> None:
    """Pruned a second time: with all gates open the time is that of the model before."""
    everything = LAYOUT.heads(ALL_SITES)
    layout = LAYOUT.keeping(
        [h for h in everything if not f"{h}.".startswith(f"{lost}.")], ALL_SITES
    )
    costs = Costs(engine, 1, 4, 5, moves, 1.0, 2.0, BLOCK, UNIT)
    heads = layout.heads(["enc", "dec", "dec_layers"])
    gates = TimedGates(
        heads, torch.device("cpu"), costs=replace(costs, full=costs.seconds(layout)),
        layout=layout, speedup=1.01, updates=100, warmup=0, patience=20, start=100.0,
    )  # fmt: skip
    assert float(gates.time().detach()) == pytest.approx(1.0)


def test_the_price_is_found_that_reaches_the_goal() -> None:
    """Without a loss that objects, gates close until the expected time is the goal, and stay."""
    gates = make_gates(1.6, updates=300)
    optimiser = torch.optim.Adam(gates.parameters(), lr=0.05, betas=(0.9, 0.98))
    # Every gate is worth something, the first ones more.
    worth = torch.linspace(0.5, 0.01, len(gates.heads))
    for update in range(1, 601):
        torch.manual_seed(update)
        gates.begin(update)
        optimiser.zero_grad()
        loss = gates.penalty() - (worth * gates.gates()).sum()
        loss.backward()
        optimiser.step()
    assert float(gates.time().detach()) == pytest.approx(1 / 1.6, abs=0.04)
    assert gates.weight > 0
    assert gates.metrics()["time_price"] == gates.weight
    other = make_gates(1.6)
    other.load_state(gates.state())
    assert other.weight == gates.weight
    assert torch.equal(other.is_open(), gates.is_open())


@pytest.fixture
def by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that goes by the size of models: real ones would make tests depend on the machine."""

    def clock(runs: Sequence[Run], *arguments: Any, **options: Any) -> list[float]:
        return [price(run.model.heads) for run in runs]

    for module in (costs_module, calibration_module):
        monkeypatch.setattr(module, "time_runs", clock)


QUICK = {"updates": 10, "finetune": 3, "bleu_sentences": 4, "gate_learning_rate": 0.5}


def test_few_updates_still_meet_the_target() -> None:
    gates = make_gates(1.5)
    assert gates.doubts(200, rate=0.05) is None
    assert "hardly learned: gates begin at 2.5" in str(gates.doubts(60, rate=0.01))
    assert not gates.is_open().all()


def test_a_pruning_says_what_was_promised_and_measured(
    by_size: None, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    given = {"speedup": 1.3, "sites": "enc,enc_ff,enc_layers", **QUICK}
    run = prune(baseline, corpus, tmp_path / "out", **given)
    record = read_record(tmp_path / "out")
    speed = record["speed"]
    assert speed["asked"] == 1.3
    assert speed["promised"] >= 1.3
    assert speed["measured"] == pytest.approx(speed["promised"], rel=1e-4)
    assert record["method"] == "timed"
    assert record["largest_logit_difference"] <= 1e-5
    assert record["settings"]["engine"] == "headcount"
    assert price(run.model.heads) < record["costs"]["full"]


def test_a_price_list_that_is_known_is_not_measured_again(
    by_size: None,
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = make_plan(baseline, corpus, sites="enc,enc_layers").costs
    monkeypatch.setattr(timed_module, "measure_costs", None)
    given = {"speedup": 1.1, "sites": "enc,enc_layers", **QUICK}
    prune(baseline, corpus, tmp_path / "out", **given, costs=costs)
    assert read_record(tmp_path / "out")["costs"] == costs.to_json()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"batch": 32},
            "those of headcount with a batch of 32, not of headcount with a batch of 1",
        ),
        ({"engine": "ctranslate2"}, "those of ctranslate2 with a batch of 1"),
        ({"unit": {"enc": 0.3}}, "no price for enc_ff"),
        ({"full": 1000.0}, r"another model: by them .* takes 0\.0\d times"),
    ],
)
def test_prices_of_something_else_are_refused(
    change: dict[str, Any], said: str, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    layout = load_run(baseline).model.heads
    costs = Costs("headcount", 1, 4, 5, True, price(layout), 2.0, BLOCK, UNIT)
    settings = {"speedup": 1.1, "sites": "enc,enc_layers", **QUICK}
    with pytest.raises(UserError, match=said):
        prune(baseline, corpus, tmp_path / "out", **settings, costs=replace(costs, **change))
    assert not (tmp_path / "out").exists()


def test_prices_may_differ_by_rounding_from_the_measured_time(baseline: Path) -> None:
    """By less than a hundredth of a per cent: one of many heads is not taken for rounding."""
    run = load_run(baseline)
    full = price(run.model.heads)
    for off, refused in ((1e-6, False), (5e-3, True)):
        costs = Costs("headcount", 1, 4, 5, True, full * (1 + off), 2.0, BLOCK, UNIT)
        with pytest.raises(UserError, match="another model") if refused else nullcontext():
            timed_module.check_costs(costs, run, ["enc"], "headcount", 1)


def test_one_price_for_both_attentions_of_a_decoder_where_heads_are_filled_up() -> None:
    costs = Costs("ctranslate2", 1, 4, 5, True, 1.0, 1.0, {}, {"dec": 0.1})
    assert costs.unpriced(LAYOUT, ["cross"]) == []
    assert replace(costs, engine="headcount").unpriced(LAYOUT, ["cross"]) == ["cross"]
    assert costs.unpriced(LAYOUT, ["enc_layers"]) == ["enc", "enc_ff"]


@pytest.mark.parametrize(
    "change",
    [
        {"full": 0.0},
        {"full": float("nan")},
        {"rest": float("inf")},
        {"unit": {"enc": -0.1}},
        {"block": {"head": 0.1}},
    ],
)
def test_prices_that_are_no_times_are_refused(change: dict[str, Any]) -> None:
    costs = Costs("headcount", 1, 4, 5, True, 1.0, 1.0, BLOCK, UNIT)
    with pytest.raises(ValueError, match=r"prices must be finite|no site 'head'"):
        replace(costs, **change)


def test_killed_and_resumed_equals_not_killed(
    by_size: None,
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"speedup": 1.3, "sites": "enc,enc_layers", "distil": 0.5, **QUICK}
    prune(baseline, corpus, tmp_path / "whole", **given)

    def stop(line: dict[str, Any]) -> None:
        if line["update"] == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        prune(baseline, corpus, tmp_path / "parts", **given, observe=stop)
    monkeypatch.setattr(timed_module, "measure_costs", None)  # prices are in pruning.json
    prune(baseline, corpus, tmp_path / "parts", **given, resume=True)
    one, other = (load_file(tmp_path / n / "model.safetensors") for n in ("whole", "parts"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    records = [read_record(tmp_path / name) for name in ("whole", "parts")]
    assert records[0]["kept"] == records[1]["kept"]
    assert records[0]["speed"] == records[1]["speed"]


def test_a_target_that_no_pruning_reaches(
    by_size: None, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"without anything at enc .* is 1\.\d\d times .* idle"):
        prune(baseline, corpus, tmp_path / "out", speedup=9, sites="enc", **QUICK)
    assert not (tmp_path / "out").exists()


def test_the_plan_is_printed_without_a_folder_to_write(
    by_size: None,
    baseline: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["headcount", "prune", str(baseline), "--train", str(corpus)]
    monkeypatch.setattr("sys.argv", [*command, "--plan", "--keep", "enc=2,enc_layers=3", "--quiet"])
    main()
    printed = capsys.readouterr().out
    assert "together" in printed
    assert "headcount, batch 1" in printed
    monkeypatch.setattr("sys.argv", [*command, "--keep", "2"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "Name it with --out" in capsys.readouterr().err


def test_a_plan_for_a_speed_keeps_the_most_that_is_fast_enough(
    by_size: None, baseline: Path, corpus: Path
) -> None:
    plan = make_plan(baseline, corpus, sites="enc,enc_ff,enc_layers", speedup=1.2)
    layout = load_run(baseline).model.heads

    def smaller(percent: int) -> HeadLayout:
        """An even pruning, built from scratch: the lowest blocks, the first of every layer."""
        blocks = layout.heads(["enc_layers"])
        smaller = layout.keeping(blocks[: len(blocks) * percent // 100], ["enc_layers"])
        for site in ("enc", "enc_ff"):
            heads = sorted(smaller.heads([site]), key=lambda head: (head.index, head.layer))
            smaller = smaller.keeping(heads[: layout.count(site) * percent // 100], [site])
        return smaller

    share = max(p for p in range(101) if price(layout) / price(smaller(p)) >= 1.2)
    assert plan.percent == share
    assert plan.rows[-1].speedup >= 1.2
    for row in plan.rows[:-1]:
        assert row.keep == smaller(share).count(row.site)
    assert plan.rows[-1].keep == sum(row.keep or 0 for row in plan.rows[:-1])
    beyond = make_plan(baseline, corpus, sites="enc", speedup=9)
    assert beyond.percent is None
    assert beyond.rows[-1].keep is None


@pytest.mark.parametrize(
    ("speedup", "said"),
    [
        ("1.05", "1.05 times as fast can be reached"),
        ("9", "9 times as fast is out of reach: without anything"),
        ("9", "if the machine was busy, the times are rough: measure again when it is idle."),
    ],
)
def test_the_plan_says_whether_a_speed_can_be_reached(
    speedup: str,
    said: str,
    by_size: None,
    baseline: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["headcount", "prune", str(baseline), "--train", str(corpus), "--plan", "--quiet"]
    monkeypatch.setattr("sys.argv", [*command, "--speedup", speedup])
    main()
    assert said in " ".join(capsys.readouterr().out.split())  # lines are wrapped


def test_a_run_that_is_slower_than_was_asked_for_says_so(
    by_size: None,
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibration_module, "time_runs", lambda *_, **__: [1.0, 1.0])
    given = {"speedup": 1.1, "sites": "enc,enc_ff,enc_layers", **QUICK}
    with pytest.warns(Notice, match=r"measured to be 1\.00 times as fast, but 1\.1 was asked"):
        prune(baseline, corpus, tmp_path / "out", **given)
    record = read_record(tmp_path / "out")
    assert any("promised" in text for text in remarks_on(record))
    record["speed"]["measured"] = 0.96 * 1.1
    assert not any("promised" in text for text in remarks_on(record))


def test_a_plan_counts_what_a_pruning_gives(
    by_size: None, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    plan = make_plan(baseline, corpus, "enc=2,enc_ff=0")
    costs, rows = plan.costs, plan.rows
    assert [row.site for row in rows] == ["enc", "enc_ff", "together"]
    pruned = prune(
        baseline, corpus, tmp_path / "out", keep="enc=2,enc_ff=0", by="random", updates=0, even=True
    )
    before = read_record(tmp_path / "out")["baseline"]["parameters"]
    assert rows[-1].parameters == pytest.approx(1 - count_parameters(pruned.model) / before)
    assert rows[-1].speedup == pytest.approx(costs.full / price(pruned.model.heads), rel=1e-3)
    assert rows[-1].ceiling >= rows[-1].speedup
    ceilings = make_plan(baseline, corpus, sites=",".join(ALL_SITES)).rows
    assert all(row.keep is None and row.speedup == pytest.approx(1) for row in ceilings)
    assert all(row.ceiling > 1.01 and row.product_ceiling > 1.01 for row in ceilings)
    assert {row.site for row in ceilings} == {*ALL_SITES, "together"}
    assert set(BLOCKS) <= {row.site for row in ceilings}


def test_heads_of_a_block_that_is_gone_are_not_filled_up_to() -> None:
    """Where an engine gives all attentions of a stack the heads of the largest that is there."""
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    sizes = {
        ("dec", 0): Size(zero, one, torch.tensor(4.0)),
        ("cross", 0): Size(one, one, torch.tensor(2.0)),
        ("dec_ff", 0): Size(one, one, one),
    }
    for moves in (True, False):
        counted = totals(sizes, fills=True, moves=moves)
        assert [float(number) for number in counted["cross"]] == [1, 2]


DEEP = HeadLayout.full(3, 2, 4, 4, units=(8, 8))


@pytest.mark.parametrize(
    "keep",
    [
        {"enc": 6, "enc_ff": 12, "enc_layers": 4},
        {"enc": 3, "enc_ff": 8, "enc_layers": 3},
        {"enc": 0, "enc_ff": 20, "enc_layers": 3, "dec_layers": 2, "cross": 4},
        {"dec": 5, "cross": 1, "dec_ff": 0, "dec_layers": 4},
    ],
)
def test_the_numbers_of_a_plan_are_there(keep: dict[str, int]) -> None:
    found = with_numbers(DEEP, keep)
    assert {site: found.count(site) for site in keep} == keep
    for site in set(keep) & {"enc", "dec", "cross"}:
        numbers = [
            len(i) for layer, i in enumerate(found.layers[site]) if found.has_block(site, layer)
        ]
        assert not numbers or max(numbers) - min(numbers) <= 1, "evenly over the blocks"


def test_the_lowest_blocks_of_a_plan_stay() -> None:
    found = with_numbers(DEEP, {"enc": 3, "enc_ff": 8, "enc_layers": 3, "dec_layers": 4})
    assert found.layers["enc_layers"] == ((0, 1), (0,), ())
    assert found.layers["enc"] == ((0, 1), (0,), ())
    assert found.layers["dec_layers"] == ((0, 1, 2), (0,))
    evenly = with_numbers(DEEP, {"enc": 6, "enc_layers": 3}, even=True)
    assert [len(heads) for heads in evenly.layers["enc"]] == [2, 2, 2]


@pytest.mark.parametrize("percent", [0, 10, 34, 50, 60, 99, 100])
def test_a_share_of_everything_does_not_compound(percent: int) -> None:
    found = with_share(DEEP, ALL_SITES, percent)
    for site in ALL_SITES:
        asked = DEEP.count(site) * percent // 100
        room = sum(
            len(units)
            for layer, units in enumerate(DEEP.layers[site])
            if site in BLOCKS or found.has_block(site, layer)
        )
        assert found.count(site) == min(asked, room)


def test_a_plan_of_more_than_blocks_can_hold_is_refused(
    by_size: None, baseline: Path, corpus: Path
) -> None:
    with pytest.raises(UserError, match="enc=3 needs 2 of the whole blocks at enc_layers, but"):
        make_plan(baseline, corpus, "enc=3,enc_layers=1")
    rows = make_plan(baseline, corpus, "enc=3,enc_layers=3").rows
    assert [row.keep for row in rows] == [3, 3, 6]
    layout = load_run(baseline).model.heads
    smaller = layout.keeping(
        [Head.parse(name) for name in ("enc.0.0", "enc.1.0", "enc.0.1")], ["enc"]
    )
    smaller = smaller.keeping(layout.heads(["enc_layers"])[:3], ["enc_layers"])
    assert rows[-1].speedup == pytest.approx(price(layout) / price(smaller), rel=1e-3)


def test_prices_of_an_engine_that_does_not_exist_are_refused():
    with pytest.raises(ValueError, match="no engine 'abacus'"):
        Costs("abacus", 1, 1, 10, True, 1.0, 1.0, {}, {})
