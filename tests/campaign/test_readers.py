"""Any damage to a file is read, or refused with a `UserError`: no other exception gets out."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from readers import read_damaged, readers
from world import write_text_files

PATTERNS = (
    "recipe.yaml", "study.yaml", "text.conllu", "text.en", "run/config.yaml", "run/heads.json",
    "run/tokenizer.*.json", "run/*.safetensors", "run/metrics.jsonl",
    "run/checkpoints/*/state.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def worlds(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Texts, recipes and a run, and a copy to damage."""
    world = tmp_path_factory.mktemp("readers") / "world"
    write_text_files(world)
    shutil.copytree(run_folder, world / "run")
    lines = [{"kind": "train", "update": 1, "loss": 2.5}, {"kind": "dev", "update": 2}]
    (world / "run/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    checkpoint = world / "run/checkpoints/00000002"
    checkpoint.mkdir(parents=True)
    state = {"update": 2, "epoch": 0, "seconds": 1.5, "source_tokens": 60, "best_loss": 2.0}
    (checkpoint / "state.json").write_text(json.dumps(state))
    return world, shutil.copytree(world, world.with_name("copy"))


@pytest.mark.parametrize("pattern", PATTERNS)
@settings(max_examples=60)
@given(seed=st.integers(0, 2**32))
def test_damaged_files(worlds: tuple[Path, Path], pattern: str, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_damaged(*worlds, pattern, readers()[pattern], str(seed)) == ""
