"""Two tiny runs for the live page: a full one with a head table and roles, and a smaller one."""

from __future__ import annotations

import pytest

import headcount
from headcount.config import Config, ModelConfig
from headcount.explore.answers import Answers
from headcount.heads import Head
from headcount.loaded.model import Model
from headcount.model.gating import remove_heads
from headcount.model.transformer import Transformer
from headcount.run import Run, load_run

TEXT = "A big dog and a small cat see it ."
GONE = [Head("enc", 0, 1), Head("enc", 1, 0), Head("cross", 0, 2)]


@pytest.fixture(scope="session")
def models(run_folder, tmp_path_factory) -> dict[str, Model]:
    pytest.importorskip("starlette", reason="needs headcount[explore]")
    folder = tmp_path_factory.mktemp("explored")
    full = load_run(run_folder)
    full.folder = folder / "full"
    full.save()
    table = full.head_table()
    table.add("lrp", {head: 0.1 * (1 + head.index) for head in table.heads})
    table.save(full.analysis)
    small = load_run(run_folder)
    small.folder, small.model = folder / "small", remove_heads(small.model, GONE)
    small.save()
    return {name: headcount.load(folder / name, device="cpu") for name in ("full", "small")}


@pytest.fixture(scope="session")
def encoders(run_folder, tmp_path_factory) -> dict[str, Model]:
    """Encoders alone: one that fills masks, and one without an output head."""
    folder, made = tmp_path_factory.mktemp("encoders"), {}
    tokenizer = load_run(run_folder).source_tokenizer
    settings = {
        "encoder_layers": 2, "decoder_layers": 0, "heads": 3, "width": 12, "ff_width": 16,
        "norm": "post", "embedding_norm": True, "tie": "all",
    }  # fmt: skip
    for name, masked in (("filling", True), ("headless", False)):
        config = ModelConfig(**settings, output_network=masked)
        model = Transformer(config, tokenizer.size, tokenizer.size, tokenizer.pad).eval()
        Run(folder / name, Config(model=config), model, tokenizer, tokenizer).save()
        made[name] = headcount.load(folder / name, device="cpu")
    return made


@pytest.fixture
def answers(models) -> Answers:
    return Answers(models, [TEXT, "The cat sees the dog ."])


@pytest.fixture(scope="session")
def twins(models) -> dict[str, Model]:
    """The same models once more, for tests that ask while the server works."""
    return {name: headcount.load(model.folder, device="cpu") for name, model in models.items()}
