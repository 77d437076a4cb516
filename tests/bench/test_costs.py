"""Prices against models whose every part has a known price; depths against packed models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from headcount.bench import costs as module
from headcount.bench.costs import Size, least, measure_costs, sizes_of, totals
from headcount.bench.engines import time_runs
from headcount.heads import ALL_SITES, BLOCKS, SITES, Head, HeadLayout
from headcount.model.gating import _packed, remove_heads
from headcount.model.transformer import Transformer, full_layout
from headcount.run import Run, load_run

BLOCK = {"enc": 0.5, "dec": 0.4, "cross": 0.3, "enc_ff": 0.2, "dec_ff": 0.1}
UNIT = {"enc": 0.05, "dec": 0.04, "cross": 0.03, "enc_ff": 0.02, "dec_ff": 0.01}


def planted(layout: HeadLayout) -> float:
    """Ten for what is always there, and the prices of everything else, block by block."""
    seconds = 10.0
    for site in BLOCK:
        for units in layout.layers[site]:
            seconds += BLOCK[site] * (len(units) > 0) + UNIT[site] * len(units)
    return seconds


def planted_full_layers(layout: HeadLayout) -> float:
    """The same in an engine that has every block in each layer, and the heads of the largest."""
    seconds = 10.0
    for blocks, sites in BLOCKS.items():
        depth = 1 + max([0, *_packed(layout.layers[blocks]).values()])
        most = max([1, *(len(u) for s in sites if s in SITES for u in layout.layers[s])])
        for site in sites:
            units = most * depth if site in SITES else layout.count(site)
            seconds += BLOCK[site] * depth + UNIT[site] * units
    return seconds


@pytest.fixture
def run(run_folder: Any) -> Run:
    run = load_run(run_folder)
    run.config.model.ff_block = 4
    layout = full_layout(run.config.model)
    run.model = Transformer(run.config.model, run.source_tokenizer.size, run.target_tokenizer.size)
    assert run.model.heads == layout
    return run


@pytest.mark.parametrize(
    ("engine", "truth"), [("headcount", planted), ("ctranslate2", planted_full_layers)]
)
def test_planted_prices_are_found(
    engine: str, truth: Callable[[HeadLayout], float], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock(runs: Sequence[Run], *arguments: Any, **options: Any) -> list[float]:
        return [truth(each.model.heads) for each in runs]

    monkeypatch.setattr(module, "time_runs", clock)
    found = measure_costs(run, [[5, 6, 7]], ALL_SITES, engine=engine)
    layout = run.model.heads
    assert found.full == pytest.approx(truth(layout))
    if engine == "headcount":
        assert found.unit == pytest.approx(UNIT, rel=1e-4)
        assert found.block == pytest.approx(BLOCK, rel=1e-4)
    rng = torch.Generator().manual_seed(1)
    for share in (0.2, 0.5, 0.8):
        kept = [h for h in layout.heads(ALL_SITES) if torch.rand(1, generator=rng) < share]
        smaller = layout.keeping(kept, ALL_SITES)
        assert found.seconds(smaller) == pytest.approx(truth(smaller), rel=1e-4)
    assert found.error == pytest.approx(0, abs=1e-4)
    gone = least(layout, ALL_SITES)
    assert found.speedup(gone) == pytest.approx(truth(layout) / truth(gone), rel=1e-4)


def test_sites_that_are_not_measured_belong_to_the_rest(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        module, "time_runs", lambda runs, *_, **__: [planted(r.model.heads) for r in runs]
    )
    found = measure_costs(run, [[5, 6, 7]], ("enc",))
    assert set(found.unit) == {"enc"}
    without = run.model.heads.keeping([], ("dec_ff",))
    assert found.seconds(without) == pytest.approx(found.full)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_expected_depth_is_the_mean_over_all_models(blocks: str) -> None:
    """Every combination of blocks that stay, packed, and weighted by its probability."""
    sites = BLOCKS[blocks]
    rng = torch.Generator().manual_seed(2)
    probability = torch.rand(2, len(sites), generator=rng)
    mean = 0.0
    for state in product((0, 1), repeat=probability.numel()):
        there = torch.tensor(state).view_as(probability)
        weight = torch.where(there > 0, probability, 1 - probability).prod()
        layers = [[i for i in range(len(sites)) if layer[i]] for layer in there]
        mean += float(weight) * (1 + max([0, *_packed(layers).values()]))
    one = torch.tensor(1.0)
    sizes = {
        (site, layer): Size(probability[layer, i], one, one)
        for layer in range(2)
        for i, site in enumerate(sites)
    }
    depth = totals(sizes, fills=True, moves=True)[sites[0]][0]
    assert float(depth) == pytest.approx(mean, rel=1e-5)


def test_sizes_of_a_model_without_a_block(run: Run) -> None:
    smaller = remove_heads(run.model, [Head("enc_layers", 1, 1), Head("enc", 0, 2)])
    sizes = sizes_of(smaller.heads)
    assert [float(sizes["enc_ff", 1].present), float(sizes["enc_ff", 0].present)] == [0, 1]
    assert float(sizes["enc", 0].units) == 2
    counted = totals(sizes, fills=False, moves=True)
    assert [float(x) for x in counted["enc_ff"]] == [1, 4]
    assert [float(x) for x in counted["enc"]] == [2, 5]


@pytest.mark.parametrize("engine", ["headcount", "ctranslate2", "ctranslate2-int8"])
def test_engines_are_timed_with_outputs_of_one_length(run_folder: Any, engine: str) -> None:
    if engine != "headcount":
        pytest.importorskip("ctranslate2")
    run = load_run(run_folder)
    seconds = time_runs(
        [run, run], [[5, 6], [7, 8, 9]], engine, batch=2, beam=2, length=4, rounds=1
    )
    assert len(seconds) == 2
    assert min(seconds) > 0
