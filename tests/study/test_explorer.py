"""Attention packed for a page: what comes out is what the model computed."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from planted import PlantedModel, plant, plant_explorer

from headcount.errors import UserError
from headcount.heads import ALL_SITES, HeadLayout
from headcount.model.recording import record
from headcount.run import load_run
from headcount.study.explorer import (
    LONGEST,
    ModelAttention,
    choose_sentences,
    explored_models,
    fit,
    read_explorer,
    sample_attention,
    write_explorer,
)
from headcount.study.results import load_results

LINES = ["The cat sees the dog .", "I see you , and you see me !", "Le chat voit le grand chien ."]


def test_weights_survive(run_folder):
    """Unpacked weights equal a forward pass of the same tokens to half a step of a byte."""
    run = load_run(run_folder)
    found = sample_attention(run, LINES, "tiny")
    assert [sentence.text for sentence in found.sentences] == LINES
    for number, sentence in enumerate(found.sentences):
        source = torch.tensor([[*run.source_tokenizer.encode(sentence.text), 3]])
        names = run.target_tokenizer.tokens()
        prefix = torch.tensor([[names.index(token) for token in sentence.target_tokens]])
        with torch.no_grad(), record(run.model, {"weights"}) as recording:
            run.model.decode(prefix, *run.model.encode(source))
        weights = found.weights(number)
        assert list(weights) == run.model.heads.heads()
        for head, array in weights.items():
            place = run.model.heads.layers[head.site][head.layer].index(head.index)
            expected = recording[head.site, head.layer, "weights"][0, place].numpy()
            assert np.abs(array - expected).max() <= 0.5 / 255 + 1e-6
        assert sentence.translation == run.target_tokenizer.decode(prefix[0, 1:].tolist())
        assert sentence.tokens[-1] == "</s>"
        assert "".join(sentence.tokens[:-1]).replace("▁", " ").split() == sentence.text.split()


def test_empty_and_long_sentences_are_left_out(run_folder):
    found = sample_attention(load_run(run_folder), ["", "the cat " * LONGEST, "The dog ."], "tiny")
    assert [sentence.text for sentence in found.sentences] == ["The dog ."]


def test_pruned_layers(tmp_path):
    """Layers with other heads, or none, keep their places."""
    layout = HeadLayout({"enc": ((1, 4), (), (0,)), "dec": ((2,),), "cross": ((0, 3),)})
    plant_explorer(tmp_path, [PlantedModel("p", layout=layout)], ["one two three"])
    stored = json.loads((tmp_path / "explorer" / "p.json").read_text())
    data = ModelAttention.from_json(stored, "p.json")
    weights = data.weights(0)
    assert [str(head) for head in weights] == [
        "enc.0.1", "enc.0.4", "enc.2.0", "dec.0.2", "cross.0.0", "cross.0.3",
    ]  # fmt: skip
    for head, array in weights.items():
        assert array.shape == (4, 4)
        assert array.sum(1) == pytest.approx(np.ones(4), abs=0.02)
        if head.site == "dec":
            assert np.triu(array, 1).max() == 0
    assert data.to_json() == stored


def test_choose_sentences():
    lines = [f"a b c d e {i}" for i in range(50)] + ["short", "", "a b c d e 3"]
    chosen = choose_sentences(lines, 10)
    assert len(chosen) == len(set(chosen)) == 10
    assert chosen == sorted(chosen, key=lines.index)
    assert lines.index(chosen[-1]) >= 40  # spread over the whole
    assert choose_sentences(["short", "short", "tiny"], 10) == ["short", "tiny"]
    assert choose_sentences([], 10) == []


def test_fit(tmp_path):
    models = [PlantedModel("a"), PlantedModel("b")]
    plant(tmp_path, models)
    plant_explorer(tmp_path, models, [f"sentence number {i} is here" for i in range(6)])
    data = read_explorer(load_results(tmp_path))
    sizes = [sum(len(json.dumps(model.sentences[i].to_json())) for model in data) for i in range(6)]
    assert [len(model.sentences) for model in fit(data, sum(sizes))] == [6, 6]
    assert [len(model.sentences) for model in fit(data, sum(sizes[:4]) + 5)] == [4, 4]
    assert [len(model.sentences) for model in fit(data, 10)] == [0, 0]
    assert fit([], 10) == []


def test_which_models_are_explored(tmp_path):
    models = [PlantedModel("full")]
    models += [
        PlantedModel(f"p{i}", "pruned", method="random" if i < 3 else "hard_concrete",
                     sites=("enc",), baseline="full")
        for i in range(6)
    ]  # fmt: skip
    results = load_results(plant(tmp_path, models))
    assert [m.id for m in explored_models(results, 4)] == ["full", "p3", "p4", "p5"]
    assert len(explored_models(results, 100)) == 7


def test_written_once(run_folder, tmp_path):
    """A second call finds everything up to date; other sentences or weights make it anew."""
    folder = tmp_path / "run"
    shutil.copytree(run_folder, folder)
    results = load_results(folder)
    calls = []

    def report(stage, done, total):
        calls.append(done)

    (path,) = write_explorer(results, {"en": LINES}, report)
    assert len(calls) == 3
    before = path.read_text()
    write_explorer(results, {"en": LINES}, report)
    assert len(calls) == 3
    assert path.read_text() == before
    write_explorer(results, {"en": LINES[:2]}, report)
    assert len(calls) == 5
    assert write_explorer(results, {"de": LINES}) == []
    assert [len(model.sentences) for model in read_explorer(results)] == [2]
    assert set(read_explorer(results)[0].layout.layers) == set(ALL_SITES)


def test_damaged(tmp_path):
    with pytest.raises(UserError, match="not attention data"):
        ModelAttention.from_json({"format": 1}, "x.json")
    with pytest.raises(UserError, match="format 99"):
        ModelAttention.from_json({"format": 99}, "x.json")
