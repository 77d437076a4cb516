"""`train --estimate` against what torch counts and keeps, and against a published training."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from headcount.bench.estimate import EFFICIENCY, Machines, estimate, training_bytes
from headcount.cli import main
from headcount.config import Config, ModelConfig, TrainingConfig
from headcount.data.batches import Batch
from headcount.errors import UserError
from headcount.model.arithmetic import count_parameters
from headcount.model.transformer import Transformer
from headcount.training.objective import batch_losses

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from live_memory import LiveMemory

VOCABULARY = 400


def make_step(sentences: int = 20, length: int = 25, **model: object) -> tuple[Transformer, Batch]:
    sizes = {"layers": 3, "heads": 4, "width": 64, "ff_width": 256}
    torch.manual_seed(0)
    transformer = Transformer(ModelConfig(**(sizes | model)), VOCABULARY, VOCABULARY).train()
    ids = torch.randint(1, VOCABULARY, (sentences, length))
    total = sentences * length
    return transformer, Batch(ids, ids, ids, np.arange(sentences), total, total)


def small(**training: object) -> Config:
    data = {"source_vocabulary": VOCABULARY, "target_vocabulary": VOCABULARY}
    model = {"layers": 3, "heads": 4, "width": 64, "ff_width": 256}
    return Config(data=data, model=model, training={"batch_tokens": 500} | training)


@pytest.mark.parametrize("changes", [{}, {"gated": True}, {"head_width": 8}])
def test_arithmetic_is_what_torch_counts(changes: dict[str, object]) -> None:
    """Of a whole step; torch also counts the half of the decoder's attention that looks ahead."""
    model, batch = make_step(**changes)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        batch_losses(model, batch, 0.1).smoothed.backward()
    config = small()
    config = config.model_copy(update={"model": model.config})
    counted = estimate(config).flops_per_source_token * batch.source_tokens
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.03)


@pytest.mark.parametrize("changes", [{}, {"norm": "post"}, {"width": 128, "heads": 8}])
def test_memory_is_what_stays_alive(changes: dict[str, object]) -> None:
    """Weights and Adam's means are three numbers per parameter, the rest is alive in the step."""
    model, batch = make_step(**changes)
    with LiveMemory() as memory:
        batch_losses(model, batch, 0.1).smoothed.backward()
    measured = memory.peak + 12 * count_parameters(model)
    counted = training_bytes(model, batch.source_tokens, "float32", together=False)
    assert counted == pytest.approx(measured, rel=0.1)


def test_the_efficiency_is_that_of_a_published_training() -> None:
    """Vaswani et al. (2017), Sec. 5: eight P100 of 9.5 TFLOPS, 0.4 s for 25,000 + 25,000 tokens."""
    config = Config(
        data={"source_vocabulary": 37000, "target_vocabulary": 37000},
        model=ModelConfig(tie="all"),
        training={"batch_tokens": 25000},
    )
    flops = estimate(config).flops_per_update
    assert flops / (0.4 * 8 * 9.5e12) == pytest.approx(EFFICIENCY, abs=0.02)


def test_more_devices() -> None:
    config = small(updates=1000, device_tokens=500)
    machines = Machines((1, 2, 10), peak=1.0, efficiency=0.5, link=0.001)
    alone, two, ten = estimate(config, machines).rows
    parameters = estimate(config).parameters
    assert alone.bytes_sent_per_update == 0
    assert two.bytes_sent_per_update == 4 * parameters  # a ring of two sends each half twice
    assert ten.device_tokens == 50
    assert ten.memory_bytes < two.memory_bytes
    arithmetic = estimate(config).flops_per_update / 0.5e12
    assert alone.seconds_per_update == pytest.approx(arithmetic)
    assert two.seconds_per_update == pytest.approx(arithmetic / 2 + 4 * parameters / 1e6)
    assert alone.hours == pytest.approx(1000 * arithmetic / 3600)
    assert estimate(small(updates=10**9, minutes=30)).rows[0].hours == 0.5


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is read but the recipe, and nothing is written."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "data: {corpus: null, folder: not-there, source_vocabulary: 400, target_vocabulary: 400}\n"
        "model: {layers: 3, heads: 4, width: 64, ff_width: 256}\ntraining: {batch_tokens: 500}\n"
    )
    words = ["headcount", "train", str(recipe), "--estimate", "--devices", "1,2", "--json"]
    monkeypatch.setattr("sys.argv", words)
    main()
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(estimate(small(), Machines((1, 2))).to_json())
    )
    monkeypatch.setattr("sys.argv", words[:-1])
    main()
    out = capsys.readouterr().out
    assert "2 │" in out
    assert "minutes" not in out
    monkeypatch.setattr("sys.argv", [*words[:-1], "--set", "training.minutes=0.5"])
    main()
    assert "updates, or 0.5 minutes if these end first" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [recipe]


def test_bad_machines() -> None:
    with pytest.raises(UserError, match="1 to a million"):
        Machines((0,))
    with pytest.raises(UserError, match="share of 1"):
        Machines(efficiency=1.5)
    with pytest.raises(UserError, match="max_positions"):
        estimate(Config(training=TrainingConfig()), length=100_000)
