"""The largest even shape that is fast enough: against trying all choices of blocks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from headcount.bench.costs import Costs
from headcount.errors import UserError
from headcount.heads import ALL_SITES, BLOCKS, SITES, UNIT_SITES, Head, HeadLayout
from headcount.model.arithmetic import count_parameters, weights_of
from headcount.model.gating import repacked
from headcount.pruning import calibration
from headcount.pruning.prune import prune
from headcount.pruning.record import read_record
from headcount.pruning.shape import best_layers, largest_shape
from headcount.run import Run, load_run

LAYOUT = HeadLayout.full(2, 3, 4, 4, units=(2, 2))


@pytest.mark.parametrize("seed", range(6))
def test_layers_have_one_block_of_each_kind_and_the_best_scores(seed: int) -> None:
    rng = random.Random(seed)
    blocks = LAYOUT.heads(["dec_layers"])
    blocks = [block for block in blocks if rng.random() < 0.8]  # a model that has lost some
    scores = {block: rng.random() for block in blocks}
    for number in (1, 2):
        orders = [
            chosen
            for chosen in combinations(blocks, 3 * number)
            if [block.index for block in chosen] == [0, 1, 2] * number
        ]
        found = best_layers(blocks, 3, number, scores)
        if not orders:
            assert found is None
        else:
            assert found == list(max(orders, key=lambda each: sum(scores[b] for b in each)))


def costs(engine: str = "ctranslate2") -> Costs:
    unit = {"enc": 1.0, "enc_ff": 0.5, "dec": 3.0, "dec_ff": 2.0}
    block = {"enc": 2.0, "dec": 6.0}
    if engine == "headcount":
        unit["cross"] = 3.0
    price = Costs(engine, 1, 4, 5, True, 1.0, 10.0, block, unit)
    return Costs(engine, 1, 4, 5, True, price.seconds(LAYOUT), 10.0, block, unit)


@pytest.mark.parametrize("engine", ["ctranslate2", "headcount"])
@pytest.mark.parametrize("speedup", [1.2, 1.7, 2.5])
def test_no_even_shape_that_is_fast_enough_is_larger(engine: str, speedup: float) -> None:
    price, weights = costs(engine), dict.fromkeys(LAYOUT.heads((*SITES, *UNIT_SITES)), 3)
    kept = largest_shape(LAYOUT, ALL_SITES, price, speedup, weights)
    assert kept is not None
    found = LAYOUT.keeping(kept, ALL_SITES)
    assert price.speedup(found) >= speedup

    def even(depths: dict[str, int], sizes: dict[str, int]) -> HeadLayout:
        heads = [b for b in LAYOUT.heads(BLOCKS) if b.layer < depths[b.site[:3]]]
        heads += [h for h in LAYOUT.heads((*SITES, *UNIT_SITES)) if h.index < sizes[h.site]]
        return LAYOUT.keeping(heads, ALL_SITES)

    sizes = [
        sum(weights[head] for head in smaller.heads((*SITES, *UNIT_SITES)))
        for smaller in (
            even(
                {"enc": layers, "dec": others},
                {"enc": heads, "dec": more, "cross": more, "enc_ff": units, "dec_ff": rest},
            )
            for layers in (1, 2)
            for others in (1, 2, 3)
            for heads in range(1, 5)
            for more in range(1, 5)
            for units in (1, 2)
            for rest in (1, 2)
        )
        if price.speedup(smaller) >= speedup
    ]
    assert sum(weights[h] for h in found.heads((*SITES, *UNIT_SITES))) == max(sizes)


def test_scores_say_which_ones_stay_and_only_at_the_sites() -> None:
    weights = dict.fromkeys(LAYOUT.heads((*SITES, *UNIT_SITES)), 1)
    best = {Head("dec_layers", 0, 0), Head("dec_layers", 1, 1), Head("dec_layers", 2, 2)}
    scores = {head: float(head in best) for head in LAYOUT.heads(ALL_SITES)}
    kept = largest_shape(LAYOUT, ("dec_layers",), costs(), 1.7, weights, scores)
    assert kept is not None
    assert set(kept) == best
    scores = {head: float(head.index) for head in LAYOUT.heads(ALL_SITES)}
    kept = largest_shape(LAYOUT, ("dec", "cross"), costs(), 1.2, weights, scores)
    assert kept is not None
    assert {head.index for head in kept} in ({3}, {2, 3}, {1, 2, 3})
    assert {head.layer for head in kept} == {0, 1, 2}
    assert largest_shape(LAYOUT, ("enc",), costs(), 5.0, weights) is None


def prices(layout: HeadLayout) -> Costs:
    unit = {"enc": 1.0, "enc_ff": 0.5, "dec": 1.0, "cross": 1.0, "dec_ff": 0.5}
    price = Costs("headcount", 1, 4, 5, True, 1.0, 2.0, {}, unit)
    return Costs("headcount", 1, 4, 5, True, price.seconds(layout), 2.0, {}, unit)


def test_a_speed_that_only_the_loss_of_everything_reaches(
    baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    layout = load_run(baseline).model.heads
    price = prices(layout)
    assert price.speedup(layout.keeping([], ALL_SITES)) > 5
    with pytest.raises(UserError, match=r"^--speedup 5 --by shape: even the smallest shape at enc"):
        prune(
            baseline, corpus, tmp_path / "out", speedup=5, by="shape", sites=ALL_SITES, updates=8,
            costs=price,
        )  # fmt: skip
    assert not (tmp_path / "out").exists()


def test_a_pruning_by_shape(
    baseline: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = load_run(baseline)
    layout = full.model.heads
    price = prices(layout)

    def clock(runs: Sequence[Run], *_: Any, **__: Any) -> list[float]:
        return [price.seconds(run.model.heads) for run in runs]

    monkeypatch.setattr(calibration, "time_runs", clock)
    run = prune(
        baseline, corpus, tmp_path / "small", speedup=1.5, by="shape", sites=ALL_SITES, updates=8,
        costs=price,
    )  # fmt: skip
    record = read_record(tmp_path / "small")
    assert record["speed"]["promised"] >= 1.5
    assert set(record["scores"]) == {str(head) for head in layout.heads(ALL_SITES)}
    kept = largest_shape(
        layout, ALL_SITES, price, 1.5, weights_of(full.model),
        {Head.parse(head): score for head, score in record["scores"].items()},
    )  # fmt: skip
    assert kept is not None
    assert run.model.heads == layout.keeping(kept, ALL_SITES)
    packed = repacked(run.model)
    depths = [len(packed.heads.layers[site]) for site in ("enc_layers", "dec_layers")]
    assert depths == [
        sum(b.index == 0 for b in run.model.heads.heads([s])) for s in ("enc_layers", "dec_layers")
    ]
    assert count_parameters(run.model) < count_parameters(full.model)
