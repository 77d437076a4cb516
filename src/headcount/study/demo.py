"""`headcount demo`: the story on a small corpus, on a CPU, every number computed on the spot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import Any

from headcount.config import Config, load_recipe
from headcount.data.corpora import load_corpus
from headcount.files import read_lines
from headcount.run import CONFIG, Run
from headcount.scoring import Scores, score_lines
from headcount.training.preparation import Report, find_corpus
from headcount.training.train import train
from headcount.translation import translate_lines

SCORED_SENTENCES = 500
CHUNK = 100


@dataclass(frozen=True)
class Sample:
    """One test sentence, its reference and the model's translation."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    run: Run
    updates: int
    training_seconds: float
    scores: Scores
    samples: list[Sample]
    seconds: float


def demo_config(corpus: str | None, minutes: float | None) -> Config:
    """The demo's recipe, for another corpus or time where asked."""
    overrides = []
    if corpus is not None:
        overrides.append(f"data.corpus={corpus}")
    if minutes is not None:
        overrides.append(f"training.minutes={minutes}")
    with as_file(files("headcount") / "recipes" / "demo.yaml") as path:
        return load_recipe(path, overrides)


def demo(
    out: Path,
    config: Config,
    report: Report = lambda stage, done, total: None,
    observe: Callable[[dict[str, Any]], None] = lambda line: None,
) -> DemoResult:
    """Fetch the corpus, train, score on test sentences, translate a few.

    A second call finds what the first one made and goes on from there.
    """
    began = time.perf_counter()
    corpus = find_corpus(config.data, report)
    folder = out / "model"
    run, progress = train(
        config, folder, resume=(folder / CONFIG).exists(), report=report, observe=observe
    )
    test = load_corpus(corpus.folder, check=False)
    sources = list(islice(read_lines(test.path("test", "source")), SCORED_SENTENCES))
    references = list(islice(read_lines(test.path("test", "target")), SCORED_SENTENCES))
    report("Translating test sentences", 0, len(sources))
    translations = []
    for done in range(0, len(sources), CHUNK):
        translations += translate_lines(run, sources[done : done + CHUNK])
        report("Translating test sentences", len(translations), len(sources))
    scores = score_lines(translations, references, resamples=1000)
    samples = [Sample(*row) for row in zip(sources, references, translations, strict=True)]
    chosen = sorted(samples, key=lambda sample: len(sample.source))[:: max(1, len(samples) // 6)]
    seconds = time.perf_counter() - began
    return DemoResult(run, progress.update, progress.seconds, scores, chosen[:6], seconds)
