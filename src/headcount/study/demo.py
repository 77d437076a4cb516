"""`headcount demo`: the paper's story on a small model, every number computed on the spot.

The demo is a small study: the model that ships with the package (or one trained here) is scored,
its heads are ranked and named, most of them are pruned, and a report is written.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from headcount.data.corpora import CORPORA
from headcount.errors import UserError
from headcount.files import owned
from headcount.heads import Head
from headcount.run import load_run
from headcount.study.models import FULL, PRUNED
from headcount.study.plan import make_plan
from headcount.study.publish import write_manifest
from headcount.study.recipe import StudyConfig, load_study
from headcount.study.results import StudyModel, StudyResults, load_results
from headcount.study.runner import Runner
from headcount.study.stages import Book
from headcount.translation import translate_lines

SENTENCES = (
    "The old woman reads a book in the garden.",
    "We don't know where your brother lives.",
)


def shipped_model() -> Path:
    """The run folder of the model that comes with the package."""
    return Path(str(files("headcount") / "demo_model"))


def demo_study(corpus: str | None, train: bool, minutes: float | None) -> StudyConfig:
    """The demo's study: on another corpus, or with a model of its own, where asked."""
    recipes = Path(str(files("headcount") / "recipes"))
    study = load_study(recipes / "study-demo.yaml")
    pair = study.pairs[0]
    settings = []
    if corpus is not None:
        CORPORA.find(corpus)  # before anything is written
        settings.append(f"data.corpus={corpus}")
    if train:
        pair.recipe = recipes / "demo.yaml"
        settings += [] if minutes is None else [f"training.minutes={minutes}"]
    elif not (shipped_model() / "model.safetensors").is_file():
        raise UserError("This installation has no demo model.", "Use `headcount demo --train`.")
    else:
        pair.run = shipped_model()
    pair.set = tuple(settings)
    return study


def run_demo(
    study: StudyConfig, out: Path, watch: Callable[[Runner], Callable[[], None]]
) -> tuple[StudyResults, float]:
    """Run all stages; a second call finds what the first one made and goes on from there."""
    began = time.perf_counter()
    with owned(out):
        book = Book.open(out, make_plan(study, out))
        write_manifest(study, out)
        runner = Runner(book, list(book.stages))
        runner.run(watch(runner))
    return load_results(out), time.perf_counter() - began


def tell(results: StudyResults) -> list[str]:
    """The story in a dozen lines that a newcomer understands."""
    full = next(model for model in results.models if model.kind == FULL)
    pruned = next(model for model in results.models if model.kind == PRUNED)
    return [
        *_translations(full, pruned),
        *_who_matters(full),
        *_what_they_do(full),
        *_what_went(full, pruned),
        *_other_text(results, full),
        *_how_fast(results),
    ]


def _translations(full: StudyModel, pruned: StudyModel) -> list[str]:
    """Sentences of our own, in French by both models."""
    both = [translate_lines(load_run(model.folder), SENTENCES) for model in (full, pruned)]
    return [
        f"{english}  full: {before}  pruned: {after}"
        for english, before, after in zip(SENTENCES, *both, strict=True)
    ]


def _who_matters(full: StudyModel) -> list[str]:
    relevance = {head: v for head, v in full.column("lrp").items() if head.site == "enc"}
    cost = {head: v for head, v in full.column("ablation").items() if head.site == "enc"}
    if not relevance:
        return []
    layers = {head.layer for head in relevance}
    leaders = [max((h for h in relevance if h.layer == layer), key=relevance.__getitem__)
               for layer in sorted(layers)]  # fmt: skip
    lines = [
        f"The model has {len(relevance)} encoder heads. The most relevant of each layer (LRP): "
        + ", ".join(f"{head} ({relevance[head]:.0%})" for head in leaders)
        + "."
    ]
    if cost:
        worst = max(cost, key=cost.__getitem__)
        lines.append(
            f"Without {worst} alone the loss rises most, by {cost[worst]:.3f} nats a token;"
            f" {sum(value < 0.001 for value in cost.values())} heads cost less than 0.001."
        )
    return lines


def _what_they_do(model: StudyModel) -> list[str]:
    if model.roles is None:
        return []
    named = _roles(model)
    if not named:
        return ["No head meets the paper's criteria for a role."]
    shown = "; ".join(f"{head}: {', '.join(roles)}" for head, roles in list(named.items())[:6])
    more = "" if len(named) <= 6 else f"; and {len(named) - 6} more"
    count = "1 head has" if len(named) == 1 else f"{len(named)} heads have"
    return [f"{count} a role by the paper's criteria: {shown}{more}."]


def _roles(model: StudyModel) -> dict[Head, list[str]]:
    column = model.table.columns.get("roles", {})
    return {
        head: [name.strip() for name in str(value).split(";")]
        for head, value in column.items()
        if value
    }


def _what_went(full: StudyModel, pruned: StudyModel) -> list[str]:
    before, after = full.heads.count("enc"), pruned.heads.count("enc")
    layers = " ".join(str(len(indices)) for indices in pruned.heads.layers["enc"])
    lines = [
        f"Pruned: {after} of {before} encoder heads are left (by layer: {layers}); the others are"
        " cut out of the weights."
    ]
    for name, model in (("full model", full), ("pruned model", pruned)):
        if model.scores.bleu is not None:
            interval = model.scores.bleu_interval or 0.0
            lines.append(
                f"BLEU of the {name}: {model.scores.bleu:.1f} ± {interval:.1f}"
                f" ({model.scores.parameters} parameters)."
            )
    kept = {head for head in _roles(full) if head in set(pruned.heads.heads(("enc",)))}
    if _roles(full):
        lines.append(f"Of the heads that had a role, {len(kept)} of {len(_roles(full))} are left.")
    now = _roles(pruned)
    if now:
        lines.append(f"In the pruned model {len(now)} of {after} heads have a role.")
    return lines


def _other_text(results: StudyResults, full: StudyModel) -> list[str]:
    """A pruned model has trained on the demo's text; the shipped one perhaps never saw its like."""
    data, here = full.config.data, results.pair(full).corpus
    if data.folder is not None or data.name == here:  # trained in this study, or on this text
        return []
    return [
        f"The full model was trained on {data.name}, and pruning has trained on {here}: the pruned"
        " model's BLEU also shows what it learnt there."
    ]


def _how_fast(results: StudyResults) -> list[str]:
    if len(results.bench) < 2:
        return []
    first, second = results.bench[:2]
    parts = []
    for task, timing in first["timings"].items():
        if task.startswith(("encode", "beam")) and not task.endswith("batch 1"):
            ratio = timing["median"] / second["timings"][task]["median"]
            parts.append(f"{task}: {ratio:.2f} times as fast")
    return [f"Speed of the pruned model: {'; '.join(parts)}."] if parts else []
