"""`onnxruntime` runs the graphs step by step; the run's own logits of all steps are expected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headcount.data.batches import padded
from headcount.errors import UserError
from headcount.interop.checking import Sample, make_sample
from headcount.interop.export import export
from headcount.interop.onnx_export import OnnxModel, check_onnx, stepped_logits
from headcount.run import Run
from model_shapes import SHAPES

onnx = pytest.importorskip("onnx", reason="needs headcount[onnx]")
pytest.importorskip("onnxruntime", reason="needs headcount[onnx]")

NO_DEC = [f"dec.{layer}.{index}" for layer in range(2) for index in range(3)]
NO_CROSS = [f"cross.{layer}.{index}" for layer in range(2) for index in range(3)]
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm": "post", "activation": "swish", "output_bias": True, "tie": "all"},
    "ragged": {"gone": ["enc.0.0", "enc.0.1", "enc.0.2", "dec.1.2", "cross.0.1"]},
    "no decoder self-attention": {"gone": NO_DEC, "activation": "gelu"},
    "no cross-attention": {"gone": NO_CROSS, "norm": "post"},
    "odd sizes": {
        "head_width": 5, "decoder_head_width": 7,
        "decoder_heads": 2, "decoder_ff_width": 9, "embedding_scale": False,
        "tie": "none",
        "position_base": 50.0,
    },
    "T5": {**SHAPES["t5"], "gone": ["enc.0.1", *NO_CROSS[:3]]},
    "T5 1.1": {**SHAPES["t5 1.1"], "gone": ["enc.0.0", "enc.0.1", "enc.0.2"]},
    "biases per layer and sinusoids": {**SHAPES["biases per layer"], "position_distance": 9},
    "biases per layer alone": {
        "relative_positions": "layer", "positions": "none", "position_distance": 17,
        "gone": ["enc.1.1", "dec.0.2"],
    },
    "units and blocks gone": {
        "ff_block": 5, "gone": ["enc_ff.0.1", *(f"enc_ff.1.{i}" for i in range(4)), "dec_ff.0.3",
                                "enc_layers.0.0", "dec_layers.0.1", "dec_layers.1.2"],
    },
    "units and blocks gone, post-norm": {
        "norm": "post", "ff_block": 5,
        "gone": [*(f"dec_ff.1.{i}" for i in range(4)), "enc_layers.1.1", "dec_layers.0.0"],
    },
    "T5 1.1 without much": {
        **SHAPES["t5 1.1"], "ff_block": 4,
        "gone": [*(f"enc_ff.1.{i}" for i in range(4)), "dec_layers.0.2", "enc_layers.0.0"],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=MODELS, ids=str)
def run(request: pytest.FixtureRequest, make_run: Callable[..., Run]) -> Run:
    return make_run(list(MODELS).index(request.param), **MODELS[request.param])


@torch.no_grad()
def test_logits_of_every_step(run: Run, tmp_path: Path) -> None:
    """Of batches of one and several sentences, long ones too."""
    assert export(run, "onnx", tmp_path / "out").difference < 1e-4
    model = OnnxModel(tmp_path / "out")
    sample = make_sample(run, seed=4)
    rng = torch.Generator().manual_seed(0)
    long_one = torch.randint(4, 40, (1, 120), generator=rng)
    long_target = torch.cat([sample.target[:1, :1], long_one[:, :20]], 1)
    samples = [
        sample,
        Sample(sample.sentences[:1], sample.source[:1, :2], sample.target[:1], sample.real[:1]),
        Sample([], long_one, long_target, torch.ones_like(long_target, dtype=torch.bool)),
    ]
    for each in samples:
        expected = run.model(each.source, each.target)
        torch.testing.assert_close(stepped_logits(model, each), expected, atol=1e-4, rtol=0)


def test_heads_are_as_many_as_the_run_has(make_run: Callable[..., Run], tmp_path: Path) -> None:
    export(make_run(2, **MODELS["ragged"]), "onnx", tmp_path / "out")
    shapes = {value.name: value.shape for value in OnnxModel(tmp_path / "out").decoder.get_inputs()}
    assert (shapes["keys.0"][1], shapes["keys.1"][1]) == (3, 2)
    assert (shapes["source_keys.0"][1], shapes["source_keys.1"][1]) == (2, 3)
    weights = {w.name: w for w in onnx.load(tmp_path / "out" / "encoder.onnx").graph.initializer}
    assert not any(name.startswith("enc.0") for name in weights)
    assert any(name.startswith("enc.1") for name in weights)


def test_a_wrong_graph_is_noticed(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(0)
    export(run, "onnx", tmp_path / "out")
    with torch.no_grad():
        run.model.output_weight[5] += 0.1
    with pytest.raises(UserError, match="other numbers"):
        check_onnx(run, tmp_path / "out", make_sample(run))


@torch.no_grad()
def test_an_imported_run(marian_run: Run, english: list[str], tmp_path: Path) -> None:
    """With its own padding, and numbers from the written vocabulary."""
    import json

    from tokenizers import Tokenizer as Core

    folder = tmp_path / "out"
    assert export(marian_run, "onnx", folder, lines=english[:5]).difference < 1e-4
    ids = json.loads((folder / "ids.json").read_text())
    numbers = {
        token: number
        for number, token in enumerate(json.loads((folder / "source_vocabulary.json").read_text()))
    }
    core = Core.from_file(str(folder / "source_tokenizer.json"))
    rows = [
        [*(numbers.get(t, ids["source"]["unk"]) for t in core.encode(line).tokens), 0]
        for line in english[:6]
    ]
    state = OnnxModel(folder).start(padded(rows, ids["source"]["pad"]).numpy())
    tokens = np.full(6, ids["target"]["start"])
    logits, _ = OnnxModel(folder).step(tokens, state)
    source = [[*marian_run.source_tokenizer.encode(line), 0] for line in english[:6]]
    expected = marian_run.model(
        padded(source, marian_run.model.pad), torch.from_numpy(tokens)[:, None]
    )[:, 0]
    torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=0)
