"""`headcount.study` and `headcount.demo`: whole experiments as functions, and the demo's story.

The demo is a small study: the model that ships with the package (or one trained here) is scored,
its heads are ranked and named, most of them are pruned, and a report is written.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.resources import files
from pathlib import Path

from headcount.data.builtin import generate
from headcount.data.conllu import format_sentence
from headcount.data.corpora import CORPORA
from headcount.errors import SHIPPED, UserError
from headcount.files import owned
from headcount.heads import Head
from headcount.registry import name_list
from headcount.role.analysis import roles as name_roles
from headcount.role.result import Roles
from headcount.run import load_run
from headcount.study.cases import nearest_heads, performers
from headcount.study.claims.amounts import bleu_difference
from headcount.study.plan import make_plan
from headcount.study.publish import write_manifest
from headcount.study.recipe import FULL, PRUNED, StudyConfig, load_study, models_of
from headcount.study.results import StudyModel, StudyResults, load_results
from headcount.study.stages import Book, Runner, choose
from headcount.translation import translate_lines

LOOKED_AT = 300
"""Sentences of the first look."""
SENTENCES = (
    "The old woman reads a book in the garden.",
    "We don't know where your brother lives.",
)


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
    elif not (SHIPPED["demo"] / "model.safetensors").is_file():
        raise UserError("This installation has no demo model.", "Use `headcount demo --train`.")
    else:
        pair.run = SHIPPED["demo"]
    pair.set = (*pair.set, *settings)
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


def first_look(run: Path) -> Iterator[str]:
    """What can be said at once: two translations, and heads by name on sentences made here.

    The sentences come from the package's own small grammar, with gold trees, so that the first
    result needs neither a download nor a parser.
    """
    model = load_run(run)
    for english, french in zip(SENTENCES, translate_lines(model, SENTENCES), strict=True):
        yield f"{english}  →  {french}"
    trees = "".join(format_sentence(sentence) for sentence, _ in generate(LOOKED_AT))
    looks = {
        f"A first look at its encoder heads, on {LOOKED_AT} sentences made by a small grammar"
        " (real text follows):": model,
        "The other model in the package, into Russian (demo-ru), on the same sentences:": load_run(
            SHIPPED["demo-ru"]
        ),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "first-look.conllu"
        path.write_text(trees, encoding="utf-8")
        for line, looked_at in looks.items():
            yield line
            yield from heads_by_name(name_roles(looked_at, conllu=path))


def heads_by_name(roles: Roles) -> list[str]:
    """Positional, syntactic and rare-words heads, and the sentence in which each is seen best."""
    lines = []
    for performer in performers(roles):
        others = f"; also {', '.join(map(str, performer.others))}" if performer.others else ""
        lines.append(f"  {performer.role.kind}: {performer.head} {performer.role.sentence}{others}")
        example = performer.role.seen_best
        if example is not None:
            lines.append(f"      “{example.sentence}” ({example.hits} of {example.instances} here)")
    for kind, nearest in nearest_heads(roles).items():
        lines.append(f"  {kind}: no head meets the criterion; the nearest: {nearest}")
    return lines


class Story:
    """What the study has shown so far: each part is told once, as soon as its stages are done."""

    def __init__(self, study: StudyConfig, out: Path) -> None:
        self.out = out
        pair = study.pairs[0].name
        names = [m.id.removeprefix(f"{pair}-") for m in models_of(study, study.pairs[0])]
        full, shrunk = f"{pair}/{names[0]}", f"{pair}/{names[1]}"
        pruned = {f"{full}/score", f"{shrunk}/score", f"{shrunk}/roles"}
        self.parts: dict[Callable[[StudyResults], list[str]], set[str]] = {
            _who_matters: {f"{full}/rank"},
            _what_they_do: {f"{full}/roles"},
            _what_went: pruned,
            _other_text: pruned,
            _translations: pruned,
            _how_fast: {"bench"},
        }

    def told(self, finished: set[str]) -> list[str]:
        """The parts that can be told now and have not been."""
        ready = [tell for tell, stages in self.parts.items() if stages <= finished]
        lines: list[str] = []
        for tell in ready:
            del self.parts[tell]
            lines += tell(load_results(self.out))
        return lines


def _models(results: StudyResults) -> tuple[StudyModel, StudyModel | None]:
    """The full model, and the first pruned one where it has been made."""
    full = next(model for model in results.models if model.kind == FULL)
    return full, next((model for model in results.models if model.kind == PRUNED), None)


def _translations(results: StudyResults) -> list[str]:
    """The sentences again, in French by the pruned model."""
    _, pruned = _models(results)
    if pruned is None:
        return []
    after = translate_lines(load_run(pruned.folder), SENTENCES)
    pairs = zip(SENTENCES, after, strict=True)
    return [f"The pruned model: {english}  →  {french}" for english, french in pairs]


def _who_matters(results: StudyResults) -> list[str]:
    full, _ = _models(results)
    relevance = {head: v for head, v in full.column("lrp").items() if head.site == "enc"}
    cost = {head: v for head, v in full.column("ablation").items() if head.site == "enc"}
    if not relevance:
        return []
    layers = {head.layer for head in relevance}
    leaders = [max((h for h in relevance if h.layer == layer), key=relevance.__getitem__)
               for layer in sorted(layers)]  # fmt: skip
    lines = [
        f"The model has {len(relevance)} encoder heads. The most relevant of each layer (LRP, on"
        f" {results.pair(full).corpus}): "
        + ", ".join(f"{head} ({relevance[head]:.0%})" for head in leaders)
        + "."
    ]
    if cost:
        worst = max(cost, key=cost.__getitem__)
        lines.append(
            f"Without {worst} alone the loss rises most, by {cost[worst]:.3f} nats per token;"
            f" {sum(value < 0.001 for value in cost.values())} heads cost less than 0.001."
        )
    return lines


def _what_they_do(results: StudyResults) -> list[str]:
    full, _ = _models(results)
    if full.roles is None:
        return []
    sentences = full.roles.data.get("sentences")
    where = f" on {sentences} test sentences" if sentences else ""
    return [f"What its encoder heads do{where}:", *heads_by_name(full.roles)]


def _roles(model: StudyModel) -> dict[Head, list[str]]:
    column = model.table.columns.get("roles", {})
    return {
        head: [name.strip() for name in str(value).split(";")]
        for head, value in column.items()
        if value
    }


def _what_went(results: StudyResults) -> list[str]:
    full, pruned = _models(results)
    if pruned is None:
        return []
    before, after = full.heads.count("enc"), pruned.heads.count("enc")
    layers = " ".join(str(len(indices)) for indices in pruned.heads.layers["enc"])
    lines = [
        f"Pruned: {after} of {before} encoder heads are left (by layer: {layers}); the others are"
        " cut out of the weights."
        if after < before
        else f"Pruned: all {before} encoder heads are left, no gate has closed."
    ]
    for name, model in (("full model", full), ("pruned model", pruned)):
        if model.scores.bleu is not None:
            interval = model.scores.bleu_interval or 0.0
            lines.append(
                f"BLEU of the {name}: {model.scores.bleu:.1f} ± {interval:.1f}"
                f" ({model.scores.parameters} parameters)."
            )
    if full.bleu is not None and pruned.bleu is not None:
        cost = bleu_difference([pruned], [full])
        lines.append(
            f"The difference is {cost.value:+.1f}, with 95 % confidence between {cost.low:+.1f}"
            f" and {cost.high:+.1f}."
        )
    kept = {head for head in _roles(full) if head in set(pruned.heads.heads(("enc",)))}
    if _roles(full):
        lines.append(f"Of the heads that had a role, {len(kept)} of {len(_roles(full))} are left.")
    now = _roles(pruned)
    if now:
        lines.append(f"In the pruned model {len(now)} of {after} heads have a role.")
    return lines


def _other_text(results: StudyResults) -> list[str]:
    """Note that a pruned model was trained on the demo's text, and the shipped one perhaps not."""
    full, _ = _models(results)
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


def study(
    recipe: Path | str,
    out: Path | str,
    *,
    only: str | Iterable[str] = (),
    until: str | None = None,
    jobs: int = 1,
    watch: Callable[[], None] = lambda: None,
) -> StudyResults:
    """The whole paper from one recipe: train, rank, name, prune, score, draw, check its claims.

    recipe  a study's recipe: see recipes/study-*.yaml
    out     the study's folder; call again to continue
    only    run these stages (names or patterns) and what they need
    until   run up to this stage
    jobs    stages that may run side by side
    watch   is called while stages run
    """
    out = Path(out)
    config = load_study(Path(recipe))
    book = Book.open(out, make_plan(config, out))
    runner = Runner(book, choose(book, list(name_list(only)), until), jobs)
    write_manifest(config, out)
    runner.run(watch)
    return load_results(out)


def demo(
    out: Path | str = "demo",
    *,
    corpus: str | None = None,
    train: bool = False,
    minutes: float | None = None,
    watch: Callable[[], None] = lambda: None,
) -> StudyResults:
    """The whole story on a small real corpus: rank heads, name them, prune them, open a report.

    out      where everything is written
    corpus   another corpus; `builtin` needs no network
    train    train a small model instead of using the one in the package
    minutes  with `train`: training time (default: 5)
    watch    is called while stages run
    """
    results, _ = run_demo(demo_study(corpus, train, minutes), Path(out), lambda runner: watch)
    return results
