"""All verbs on one imported run of each family that translates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from family_checkpoints import Maker
from typer.testing import CliRunner

from headcount.cli import app
from headcount.data.builtin import generate
from headcount.data.conllu import format_sentence
from headcount.heads import SITES
from headcount.interop.importing import import_run
from headcount.run import load_run

SEEDS = {"m2m100": 0, "bart": 1, "mbart": 2, "t5": 0}
FOUR_HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 24}
SIZES = {"t5": {"num_heads": 4, "feed_forward_proj": "gated-gelu"}}


def call(*arguments: object) -> Any:
    """Run a verb; its standard output."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json", "--quiet"])
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def maker(
    transformers: Any, english: list[str], french: list[str], sentencepiece_models: tuple
) -> Maker:
    return Maker(transformers, [*english[:400], *french[:400]], sentencepiece_models[0])


@pytest.fixture(scope="module", params=SEEDS)
def run(
    request: pytest.FixtureRequest, maker: Maker, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    seed, sizes = SEEDS[request.param], SIZES.get(request.param, FOUR_HEADS)
    made = maker.make(request.param, folder / "model", seed, **sizes)
    import_run(folder / "model", folder / "run", **made.options)
    return folder / "run"


@pytest.fixture
def text(run: Path, tmp_path: Path) -> Path:
    """A corpus folder of the run's languages, with trees of its test sentences."""
    config = load_run(run).config.data
    pairs = list(generate(60, seed=5))
    for part, chosen in {"test": pairs[:5], "dev": pairs[5:15], "train": pairs[15:]}.items():
        for language, lines in (
            (config.source, [sentence.text for sentence, _ in chosen]),
            (config.target, [translation for _, translation in chosen]),
        ):
            (tmp_path / f"{part}.{language}").write_text("\n".join(lines) + "\n")
    trees = "".join(format_sentence(sentence) for sentence, _ in pairs[:5])
    (tmp_path / "conllu").write_text(trees)
    return tmp_path


def test_rank_roles_and_prune(run: Path, text: Path, tmp_path: Path) -> None:
    data = load_run(run).config.data
    source, target = text / f"test.{data.source}", text / f"test.{data.target}"
    measures = "lrp,confidence,ablation,gradient"
    call("rank", run, "--src", source, "--ref", target, "--by", measures)
    call("roles", run, "--src", source, "--conllu", text / "conllu", "--sites", "enc,dec,cross")
    loaded = load_run(run)
    table = loaded.head_table()
    for name in measures.split(","):
        assert {head.site for head in table[name]} == set(SITES)
    places = {(head.site, head.layer) for head in loaded.model.head_list()}
    for place in places:
        shares = [v for head, v in table["lrp"].items() if (head.site, head.layer) == place]
        assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    keep = 2
    call(
        "prune", run, "--train", text, "--by", "confidence", "--keep", keep, "--no-finetune",
        "--out", tmp_path / "pruned",
    )  # fmt: skip
    pruned = load_run(tmp_path / "pruned")
    assert pruned.model.heads.count("enc") == keep
    assert pruned.config.model.family == loaded.config.model.family
    call(
        "prune", run, "--train", text, "--keep", keep, "--updates", 3, "--batch-tokens", 60,
        "--out", tmp_path / "learned",
    )  # fmt: skip
    learned = load_run(tmp_path / "learned")
    assert learned.model.heads.count("enc") == keep
    call("export", tmp_path / "learned", "--to", "transformers", "--out", tmp_path / "out")
