"""Figures show the numbers they are given, and a study with few numbers has few figures."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from paper_like import FUNCTIONS
from PIL import Image
from planted import FULL, PlantedModel, closing_gates, heads, keep, plant

from headcount.study.figures import ANIMATION, FIGURES, draw_figures
from headcount.study.figures.drawing import FORMATS, PHONE, Nothing, function_colours
from headcount.study.figures.gates import frame_times, watched_model, write_gate_animation
from headcount.study.figures.head_grid import heads_figure
from headcount.study.figures.retained import functions_figure
from headcount.study.figures.sites import layer_groups
from headcount.study.figures.specialisation import specialisation_figure
from headcount.study.results import GateHistory, load_results

NAMES = [
    "fig1-heads",
    "fig2-heads-of-other-pairs",
    "fig3-offsets",
    "fig4-dependency-scores",
    "fig5-rare-words-head",
    "fig6-gates",
    "fig7-bleu",
    "fig8-functions-of-retained-heads",
    "fig9-attention-types",
    "fig10-decoder-layers",
    "specialisation",
]


def rows(folder, name):
    with (folder / "figures" / f"{name}.csv").open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def colours(axes) -> Counter[str]:
    """How often each colour fills a box."""
    return Counter(to_hex(p.get_facecolor()) for p in axes.patches if isinstance(p, Rectangle))


def test_all_figures_in_all_formats(paper_like):
    assert len(FIGURES) == len(NAMES)
    for name in NAMES[:-1]:  # no training was logged
        phone = (paper_like / "figures" / f"{name}-phone.svg").read_text()
        assert float(re.search(r'width="([\d.]+)pt"', phone)[1]) == pytest.approx(72 * PHONE, abs=1)
        for ending in (*FORMATS, "csv"):
            path = paper_like / "figures" / f"{name}.{ending}"
            assert path.stat().st_size > 100
        with Image.open(paper_like / "figures" / f"{name}.png") as image:
            assert image.width > 600
            assert len(image.convert("L").getcolors(256)) > 5  # something is drawn


def test_heads_are_sorted_by_relevance(paper_like):
    found = rows(paper_like, "fig1-heads")
    assert len(found) == 48
    for layer in range(6):
        relevance = [float(row["relevance"]) for row in found if row["layer"] == str(layer)]
        assert len(relevance) == 8
        assert relevance == sorted(relevance, reverse=True)
    named = {row["head"]: row["functions"] for row in found if row["functions"]}
    assert named.keys() == FUNCTIONS.keys()
    assert named["enc.1.4"] == "positional -1; amod noun → adj.m."


def test_every_function_has_its_colour(paper_like):
    """Cells of the functions panel: a head with two kinds of functions has a stripe of each."""
    drawing = heads_figure(load_results(paper_like))
    relevance, confidence, functions = drawing.figure.axes
    counts = colours(functions)
    assert counts == {
        function_colours()["positional"]: 4,
        function_colours()["syntactic"]: 5,
        function_colours()["rare words"]: 1,
        function_colours()["other"]: 48 - len(FUNCTIONS),
    }
    texts = [text.get_text() for text in functions.texts if text.get_text()]
    assert sorted(texts) == sorted(
        ["rare", "−1", "+1", "n→adj", "−1", "v→s\ns→v\no→v", "v→o", "o→v\nv→adv", "−1", "adv→v"]
    )
    shown = [int(text.get_text()) for text in relevance.texts]
    assert len(shown) == len(confidence.texts) == 48
    assert sum(shown) == pytest.approx(600, abs=24)  # six layers of 100 %


def test_one_block_for_each_other_pair(paper_like):
    settings = {row["setting"] for row in rows(paper_like, "fig2-heads-of-other-pairs")}
    assert settings == {"EN-RU, WMT", "EN-DE", "EN-FR"}


def test_dependencies(paper_like):
    offsets = rows(paper_like, "fig3-offsets")
    assert {row["domain"] for row in offsets} == {"OpenSubtitles", "WMT"}
    share = sum(float(row["share"]) for row in offsets if row["relation"] == "obj")
    assert share == pytest.approx(2)  # 1 in each domain
    scores = rows(paper_like, "fig4-dependency-scores")
    assert {row["setting"] for row in scores} == {"EN-RU, WMT", "EN-DE", "EN-FR"}
    assert len(scores) == 3 * 8


def test_gate_densities_add_up(paper_like):
    """The continuous part of a Hard Concrete density and its two point masses make 1."""
    found = rows(paper_like, "fig6-gates")
    for logit in ("-2.0", "0.0", "2.0"):
        curve = [r for r in found if r["panel"] == "Hard Concrete" and r["logit"] == logit]
        gates, density = ([float(r[key]) for r in curve] for key in ("gate", "density"))
        masses = [r for r in found if r["panel"] == "Hard Concrete, mass" and r["logit"] == logit]
        total = np.trapezoid(density, gates) + sum(float(r["density"]) for r in masses)
        assert total == pytest.approx(1, abs=0.03)
    closed = {r["head"] for r in found if r["update"] == "400" and r["kept"] == "0"}
    assert len(closed) == 38


def test_quality_and_sites(paper_like):
    bleu = rows(paper_like, "fig7-bleu")
    first = [r for r in bleu if r["setting"] == "EN-RU, OpenSubtitles"]
    assert Counter(r["method"] for r in first) == {
        "full": 1, "gates": 4, "lrp": 4, "random": 4,
    }  # fmt: skip
    assert {r["heads"] for r in first if r["method"] == "lrp"} == {"30", "17", "10", "4"}
    sites = rows(paper_like, "fig9-attention-types")
    assert [r["cross"] for r in sites][:5] == ["12", "15", "25", "30", "48"]
    layers = rows(paper_like, "fig10-decoder-layers")
    assert layers[0]["dec layers 0 and 1"] == "9"
    assert layers[0]["cross layers 4 and 5"] == "12"


def test_functions_of_retained_heads(paper_like):
    drawing = functions_figure(load_results(paper_like))
    counts = Counter(row["heads"] for row in drawing.data)
    assert counts == {48: 48, 30: 30, 17: 17, 10: 10, 4: 4}
    boxes = colours(drawing.figure.axes[0])
    assert boxes[function_colours()["rare words"]] == 5  # in every model
    assert boxes[function_colours()["other"]] == (48 - 9) + (30 - 9) + (17 - 9) + (10 - 9)
    numbers = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert Counter(numbers)["3"] == 4  # enc.2.0 has three functions; the smallest model lost it


def test_functions_are_shown_for_the_first_seed_of_each_setting(tmp_path):
    names = [str(head) for head in FULL.heads(("enc",))]
    function = {"enc.0.0": [("positional", "-1", 0.95)]}

    def pruned(name, kept, method="gates", **more):
        settings = {"method": method, "sites": ("enc",), "baseline": "full", "functions": function}
        return PlantedModel(name, "pruned", keep(kept), **settings, **more)

    models = [
        PlantedModel("full", functions=function),
        pruned("p", names[:20], penalty=0.01),
        pruned("p3", names[:30], penalty=0.01, seed=3),
        pruned("q", names[:10], penalty=0.03),
    ]
    exact = [pruned(f"e{k}", names[:k], "exact", keep=k) for k in (16, 8, 4)]

    def shown(models):
        drawing = functions_figure(load_results(plant(tmp_path / str(len(models)), models)))
        return list(dict.fromkeys(row["model"] for row in drawing.data))

    assert shown([*models, exact[0]]) == ["full", "p", "q"]
    assert shown([*models, *exact]) == ["full", "e16", "e8", "e4"]  # the method with most settings


def test_animation(paper_like):
    with Image.open(paper_like / "figures" / ANIMATION) as image:
        assert image.n_frames == 21
        assert max(image.size) < 400
        first = np.asarray(image.convert("RGB"), dtype=int)
        image.seek(20)
        last = np.asarray(image.convert("RGB"), dtype=int)
    dark = [int((np.abs(frame - [0, 114, 178]).sum(-1) < 40).sum()) for frame in (first, last)]
    # All 48 cells are dark at first; in the end the 10 of the model that was pruned to a fifth.
    assert dark[0] / dark[1] == pytest.approx(48 / 10, rel=0.05)


def test_long_histories_are_thinned():
    history = GateHistory(tuple(heads("enc.0.0")), tuple(range(500)), ((1.0,),) * 500)
    times = frame_times(history)
    assert len(times) == 40
    assert (times[0], times[-1]) == (0, 499)
    assert times == sorted(set(times))


def test_study_without_analyses_has_no_figures(tmp_path):
    results = load_results(plant(tmp_path, [PlantedModel("full")]))
    assert list(draw_figures(results)) == []
    with pytest.raises(ValueError, match="no log"):
        write_gate_animation(results.model("full"), tmp_path / "x.gif")


def test_figures_of_a_demo(tmp_path):
    """One full and one pruned model: everything but other pairs, attention and other sites."""
    kept = ["enc.0.5", "enc.0.1", "enc.2.0", "enc.4.6"]
    full = PlantedModel(
        "full", bleu=30.0, functions=FUNCTIONS,
        columns={"lrp": {str(h): 1 / 8 for h in FULL.heads(("enc",))}},
    )  # fmt: skip
    pruned = PlantedModel(
        "pruned", "pruned", keep(kept), "hard_concrete", ("enc",), "full", 0.02, bleu=29.0,
        functions={name: FUNCTIONS[name] for name in kept},
        gates=closing_gates(FULL, ("enc",), set(heads(*kept))),
    )  # fmt: skip
    results = load_results(plant(tmp_path, [full, pruned]))
    drawn = {drawing.name: drawing for drawing in draw_figures(results)}
    assert list(drawn) == [
        "fig1-heads", "fig3-offsets", "fig4-dependency-scores", "fig6-gates", "fig7-bleu",
        "fig8-functions-of-retained-heads",
    ]  # fmt: skip
    assert watched_model(results).id == "pruned"
    assert all(drawing.alt and drawing.caption for drawing in drawn.values())


def test_layer_groups():
    assert [list(group) for group in layer_groups(6)] == [[0, 1], [2, 3], [4, 5]]
    assert [list(group) for group in layer_groups(5)] == [[0, 1], [2, 3], [4]]
    assert [list(group) for group in layer_groups(2)] == [[0], [1]]


def test_grey_figure_becomes_a_sentence(tmp_path):
    """Where no head of any model has a function, Figure 8 would be all grey."""
    kept = ["enc.0.5", "enc.2.0"]
    full = PlantedModel("full", functions={})
    pruned = PlantedModel(
        "pruned", "pruned", keep(kept), "hard_concrete", ("enc",), "full", 0.02, functions={}
    )
    found = functions_figure(load_results(plant(tmp_path, [full, pruned])))
    assert isinstance(found, Nothing)
    assert "neither the full EN-FR model nor its prunings" in found.sentence


def test_specialisation_against_tokens(tmp_path):
    """The log of a training as curves; the tokens seen are those of the last line before."""
    study = plant(tmp_path, [PlantedModel("full")])
    lines = []
    for number in range(1, 5):
        lines.append({"kind": "train", "update": number, "source_tokens": 1000 * number})
        shares = {"share_left": 0.2 * number, "share_own": 0.5, "share_right": 0.1}
        relation = {"nsubj_best": 0.3 + 0.1 * number, "nsubj_baseline": 0.4}
        lines.append({"kind": "dev", "update": number, **shares, **relation, "dev_loss": 2.0})
    path = study / "runs" / "full" / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawing = specialisation_figure(load_results(study))
    assert [row["source_tokens"] for row in drawing.data] == [1000, 2000, 3000, 4000]
    assert [row["share_left"] for row in drawing.data] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    shares, relations = drawing.figure.axes
    assert list(relations.lines[0].get_ydata()) == pytest.approx([0, 10, 20, 30])
    assert list(shares.lines[0].get_xdata()) == pytest.approx([0.001, 0.002, 0.003, 0.004])
    for line in lines[:4]:  # two evaluations before there were parses
        line.pop("nsubj_best", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    drawing = specialisation_figure(load_results(study))
    values = list(drawing.figure.axes[1].lines[0].get_ydata())
    assert np.isnan(values[:2]).all()
    assert values[2:] == pytest.approx([20, 30])
    assert "from 0.0 million tokens on heads were watched on parsed" in drawing.caption
    assert drawing.data[0]["nsubj_best"] is None
    path.write_text(json.dumps(lines[0]) + "\n" + json.dumps(lines[1]) + "\n")
    assert specialisation_figure(load_results(study)) is None  # one point is no curve
