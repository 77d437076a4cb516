"""What several benchmarks need: a trained run, made once and kept in benchmarks/.work."""

from __future__ import annotations

from pathlib import Path

from measuring import HERE

from headcount.config import load_recipe
from headcount.training.train import train

WORK = HERE / ".work"
UPDATES = 600


def post_norm_run(corpus: Path) -> Path:
    """The folder of a run of small-cpu's shape, but post-norm, trained until it writes sentences.

    Its translations are poor, but as long as real ones, and they end.
    """
    folder = WORK / "post-norm"
    if (folder / "done").exists():
        return folder
    settings = {
        "data.corpus": "null",
        "data.folder": corpus.resolve(),
        "model.norm": "post",
        "training.updates": UPDATES,
        "training.minutes": "null",
        "training.warmup": 400,
        "training.learning_rate_scale": 0.3,
        "training.evaluate_every": UPDATES,
        "training.save_every": 200,
        "training.average_checkpoints": 1,
        "training.bleu_sentences": 100,
    }
    config = load_recipe(
        HERE.parent / "recipes" / "small-cpu.yaml", [f"{k}={v}" for k, v in settings.items()]
    )
    print(f"Training a post-norm model in {folder} (once; some minutes) ...", flush=True)
    train(config, folder, resume=(folder / "config.yaml").exists())
    (folder / "done").touch()
    return folder
