"""benchmarks/faster.py: random models of the same size, rivals as fast, table and figure."""

from __future__ import annotations

import importlib
from argparse import ArgumentTypeError
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headcount.bench.costs import Costs
from headcount.heads import ALL_SITES, BLOCKS, HeadLayout
from headcount.run import load_run

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FULL = HeadLayout.full(3, 1, 4, 2, units=(4, 4))


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("faster")


@pytest.mark.parametrize("seed", range(3))
def test_random_models_have_the_sizes_of_the_learned_one(faster: ModuleType, seed: int) -> None:
    kept = [head for head in FULL.heads(ALL_SITES) if (head.layer + head.index + seed) % 3]
    learned = FULL.keeping(kept, ALL_SITES)
    drawn = FULL.keeping(faster.random_like(FULL, learned, ALL_SITES, seed), ALL_SITES)
    for site in ALL_SITES:
        sizes = [Counter(map(len, each.layers[site])) for each in (learned, drawn)]
        if site in BLOCKS:
            kinds = [Counter(i for n in each.layers[site] for i in n) for each in (learned, drawn)]
            assert kinds[0] == kinds[1]
        else:
            assert sizes[0] == sizes[1]
    heads_only = FULL.keeping(kept, ("enc",))
    drawn = FULL.keeping(faster.random_like(FULL, heads_only, ("enc",), seed), ("enc",))
    assert [len(n) for n in drawn.layers["enc"]] == [len(n) for n in heads_only.layers["enc"]]
    assert all(drawn.layers[site] == FULL.layers[site] for site in ALL_SITES if site != "enc")


def test_a_rival_is_as_fast_and_as_large_as_can_be(faster: ModuleType, run_folder: Path) -> None:
    run = load_run(run_folder)
    unit = {"enc": 1.0, "enc_ff": 0.5}
    layout = run.model.heads
    total = unit["enc"] * layout.count("enc") + unit["enc_ff"] * layout.count("enc_ff")
    costs = Costs("headcount", 1, 4, 5, True, 10 + total, 10.0, {}, unit)
    target = (10 + total) / (10 + total / 2)
    config = faster.rival_config(run, costs, target)
    shape, full = config.model, run.config.model
    assert shape.decoder_ff_width == run.config.model.ff_width
    assert shape.heads_at("dec") == run.config.model.heads_at("dec")

    def spent(layers: int, heads: int, width: int) -> float:
        return layers * (unit["enc"] * heads + unit["enc_ff"] * -(-width // shape.ff_block))

    sizes = (shape.encoder_layers, shape.heads, shape.ff_width)
    most = (full.encoder_layers, full.heads, full.ff_width)
    assert spent(*sizes) <= total / 2 + 1e-6
    for place in range(3):  # with all there is of one kind, it would be too slow
        larger = (*sizes[:place], most[place], *sizes[place + 1 :])
        assert larger == sizes or spent(*larger) > total / 2
    assert faster.rival_config(run, costs, 100.0) is None


def test_a_rival_has_a_smaller_decoder_where_that_is_what_costs(
    faster: ModuleType, run_folder: Path
) -> None:
    run = load_run(run_folder)
    full = run.config.model
    blocks = {"dec": 1.0, "cross": 1.0, "dec_ff": 1.0}
    total = 3.0 * full.decoder_layers
    costs = Costs("headcount", 1, 4, 5, True, 1 + total, 1.0, blocks, {})
    shape = faster.rival_config(run, costs, (1 + total) / (1 + 3.0)).model
    assert (shape.decoder_layers, shape.encoder_layers) == (1, full.encoder_layers)
    assert (shape.heads, shape.ff_width) == (full.heads, full.ff_width)
    assert (shape.heads_at("dec"), shape.ff_width_at("dec_ff")) == (
        full.heads_at("dec"),
        full.ff_width_at("dec_ff"),
    )


def test_runs_made_elsewhere_are_named_like_those_made_here(faster: ModuleType) -> None:
    model = faster.Model.named("shape-1.5-long=runs/some-run")
    assert (model.name, model.kind, model.way) == ("shape-1.5-long", "shape", "long")
    assert model.run == Path("runs/some-run")
    for wrong in ("shape-1.5-long", "shape-long=runs/a", "model-1.5-long=runs/a"):
        with pytest.raises(ArgumentTypeError, match="give KIND-SPEEDUP-WAY=RUN"):
            faster.Model.named(wrong)


def result() -> dict[str, Any]:
    rows = []
    models = {
        "full": ("full", ""),
        "heads-1.2": ("heads", ""),
        "heads-1.2-random": ("heads", "random"),
        "heads-1.2-long": ("heads", "long"),
        "rival-1.2": ("rival", ""),
    }
    for model, (kind, way) in models.items():
        for engine in ("headcount", "ctranslate2"):
            for batch in (1, 32):
                rows.append(
                    {
                        "model": model, "kind": kind, "way": way, "engine": engine, "beam": 4,
                        "batch": batch, "sentences_per_second": 10.0 * batch, "faster": 1.25,
                        "bleu": 30.5, "bleu_interval": 1.5, "parameters": 2_500_000,
                        "difference": {"value": -0.5, "low": -1.0, "high": 0.0},
                        "left": dict.fromkeys(ALL_SITES, 7),
                    }
                )  # fmt: skip
    promises = {"heads-1.2": {"asked": 1.2, "promised": 1.21, "measured": 1.19}}
    return {"rows": rows, "promises": promises, "notes": ["heads cannot be 9 times as fast."]}


def test_table_and_figure_show_every_model(faster: ModuleType) -> None:
    page = faster.table(result())
    assert page.count("| 4 | headcount |") == 5
    assert "| 4 | ctranslate2 | heads-1.2 | 30.50 ± 1.50 | -0.50 (-1.00 to +0.00) |" in page
    assert "| 1.20 | 1.21 | 1.19 |" in page
    assert "10 (1.25x) | 320 (1.25x)" in page
    assert page.rstrip().endswith("cannot be 9 times as fast.")
    figure = faster.draw(result(), 4)
    assert [axis.get_title() for axis in figure.axes] == [
        "headcount, batch 1",
        "ctranslate2, batch 1",
        "headcount, batch 32",
        "ctranslate2, batch 32",
    ]
    names = {text.get_text() for text in figure.legends[0].get_texts()}
    assert names == {"full", "heads", "heads random", "heads long", "rival"}
    assert all(len(axis.get_lines()) >= 5 for axis in figure.axes)
