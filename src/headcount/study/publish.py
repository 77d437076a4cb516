"""What a study shows: `study.json`, which lists its models, and the report made from it.

`python -m headcount.study.publish DIR` is the last stage of a study.
"""

from __future__ import annotations

import datetime
import platform
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headcount.config import load_recipe
from headcount.errors import UserError
from headcount.files import inside, read_json, write_json, write_text
from headcount.run import CONFIG
from headcount.study.recipe import PairConfig, StudyConfig, models_of
from headcount.study.report import write_report
from headcount.study.results import STUDY

LIBRARIES = ("headcount", "torch", "tokenizers", "sacrebleu", "spacy", "numpy")


def write_manifest(study: StudyConfig, folder: Path) -> None:
    """List what the study is made of; the date of its beginning stays."""
    path = folder / STUDY
    if (folder / CONFIG).exists() and not path.exists():
        raise UserError(f"{folder} holds a run, not a study.", "Choose another --out.")
    before = read_json(path) if path.exists() else {}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    models = [model for pair in study.pairs for model in models_of(study, pair)]
    write_json(
        path,
        {
            "title": study.title,
            "created": before.get("created", now),
            "pairs": [_pair(pair, folder) for pair in study.pairs],
            "models": [model.to_json() for model in models],
            "versions": {
                "python": platform.python_version(),
                **{name: version(name) for name in LIBRARIES if find_spec(name)},
            },
        },
    )
    write_text(folder / "study.yaml", _yaml(study))


def _pair(pair: PairConfig, folder: Path) -> dict[str, Any]:
    data = load_recipe(pair.recipe, pair.set).data
    return {
        "name": pair.name,
        "source": data.source,
        "target": data.target,
        "domain": pair.domain,
        "corpus": data.name,
        "training_pairs": data.pairs,
    }


def _yaml(study: StudyConfig) -> str:
    import yaml

    return yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False)


def record_sizes(folder: Path) -> None:
    """Put the sizes of corpora, which are known once they are there, into `study.json`."""
    stored = read_json(folder / STUDY)
    for pair in stored["pairs"]:
        description = inside(folder / "corpora", pair["name"]) / "corpus.json"
        if description.exists():
            pair["training_pairs"] = read_json(description)["counts"]["train"]
    write_json(folder / STUDY, stored)


if __name__ == "__main__":
    record_sizes(Path(sys.argv[1]))
    write_report(Path(sys.argv[1]))
