"""Functions that read files, called directly on damaged files: thousands of cases per minute.

A reader returns something or refuses the file with a `UserError` (or an `OSError`, which the
command line turns into one line as well). Whatever else it raises would be a bug that users see.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from mutations import mutate

Reader = Callable[[Path], object]


def readers() -> dict[str, Reader]:
    """Patterns of files in the world, and what reads them."""
    from headcount.config import load_recipe
    from headcount.data.conllu import read_conllu
    from headcount.data.shards import Shards
    from headcount.data.tokenizer import Tokenizer
    from headcount.files import read_lines
    from headcount.heads import HeadTable
    from headcount.interop.sentencepiece_model import read_sentencepiece
    from headcount.pruning.record import read_record
    from headcount.ranking.rank import Provenance
    from headcount.role.result import Roles
    from headcount.run import load_config, load_heads, load_run
    from headcount.study.recipe import load_study
    from headcount.study.results import load_results
    from headcount.study.score_model import ModelScores
    from headcount.training.checkpoints import TrainingState
    from headcount.training.metrics import read_metrics

    def head_table(path: Path) -> object:
        run = path.parents[1]
        layout = load_heads(run, load_config(run).model)
        return HeadTable.load(path.parent, layout.heads())

    return {
        "recipe.yaml": load_recipe,
        "study.yaml": load_study,
        "text.conllu": lambda path: list(read_conllu(path)),
        "text.en": lambda path: list(read_lines(path)),
        "run/config.yaml": lambda path: load_config(path.parent),
        "run/heads.json": lambda path: load_heads(path.parent, load_config(path.parent).model),
        "run/tokenizer.*.json": Tokenizer.load,
        "run/*.safetensors": lambda path: load_run(path.parent),
        "run/metrics.jsonl": read_metrics,
        "run/analysis/head-table.json": head_table,
        "run/analysis/measures.json": lambda path: Provenance.load(path.parent),
        "run/analysis/roles.json": Roles.load,
        "run/checkpoints/*/state.json": lambda path: TrainingState.of(path.parent),
        "pruned/pruning.json": lambda path: read_record(path.parent),
        "corpus/prepared/*/*": lambda path: Shards.load(path.parent),
        "marian/source.spm": read_sentencepiece,
        "study/study.json": lambda path: load_results(path.parent),
        "study/scores/*.json": ModelScores.load,
    }


def read_damaged(world: Path, scratch: Path, pattern: str, reader: Reader, seed: str) -> str:
    """Damage a copy of one file of the world and read it; what is wrong, or nothing."""
    from headcount.errors import UserError

    rng = random.Random(seed)
    files = [path for path in sorted(world.glob(pattern)) if path.is_file()]
    path = rng.choice(files)
    target = scratch / path.relative_to(world)
    whole = path.read_bytes()
    how = mutate(target, rng)
    try:
        reader(target)
    except (UserError, OSError):
        pass
    except Exception as error:
        return f"{pattern}, {how}, seed {seed}: {type(error).__name__}: {str(error)[:150]}"
    finally:
        _restore(target, whole)
    return ""


def _restore(path: Path, content: bytes) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        path.rmdir()
    path.write_bytes(content)
