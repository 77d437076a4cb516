"""From a study's recipe to its stages, each of them a command that can be run by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headcount.config import Config, DataConfig, load_recipe
from headcount.errors import UserError
from headcount.model.transformer import full_layout
from headcount.pruning.methods import EXACT, GATES, method_named
from headcount.ranking.measures import MEASURES
from headcount.ranking.rank import MEASURES_FILE
from headcount.role.parses import SPACY_LANGUAGE
from headcount.run import load_config, load_heads
from headcount.study.recipe import (
    FULL,
    PRUNED,
    SCRATCH,
    Model,
    PairConfig,
    PruningConfig,
    StudyConfig,
    models_of,
)
from headcount.study.score_model import sentence_counts_path
from headcount.study.stages import Stage
from headcount.training.preparation import check_corpora

HEADCOUNT = "headcount"

# Rough costs on two CPU cores, in seconds per unit of work, where nothing has been timed yet.
SECONDS_PER_UPDATE = 0.35
SECONDS_PER_RANKED_SENTENCE = 0.5
SECONDS_PER_ROLE_SENTENCE = 0.02
SECONDS_PER_TRANSLATION = 0.05


def make_plan(study: StudyConfig, folder: Path) -> list[Stage]:
    """All stages, each after those that it needs."""
    stages: list[Stage] = []
    for pair in study.pairs:
        stages += _pair_stages(study, pair, folder)
    scored = [stage for stage in stages if stage.kind in ("score", "rank", "roles")]
    if study.bench:
        stages.append(_bench_stage(study, folder, stages))
        scored.append(stages[-1])
    needs = tuple(stage.name for stage in scored)
    command = ("headcount.study.publish", str(folder))
    stages.append(Stage("report", "report", command, needs=needs, seconds=60))
    return stages


def _pair_stages(study: StudyConfig, pair: PairConfig, folder: Path) -> Iterator[Stage]:
    config = load_recipe(pair.recipe, pair.set)
    check_corpora(config.data)
    _check_numbers(study.pruning_of(pair), pair, config)
    corpus, data = _corpus(pair, config, folder)
    yield from data
    needs = tuple(stage.name for stage in data)
    for model in models_of(study, pair):
        run = folder / "runs" / model.id
        if model.kind == FULL:
            making = _full_stage(pair, config, corpus, run, needs)
        elif model.kind == SCRATCH:
            making = _scratch_stage(study, pair, model, config, corpus, folder)
        else:
            making = _prune_stage(study, pair, model, corpus, folder)
        yield making
        yield from _analysis_stages(study, pair, model, corpus, folder, making)


def _check_numbers(pruning: PruningConfig, pair: PairConfig, config: Config) -> None:
    """Stop now, not after the training, where the model has fewer heads than are to be kept."""
    if not pruning.encoder_keep:
        return
    keep = max(pruning.encoder_keep)
    if pair.run is not None:
        layout = load_heads(pair.run, load_config(pair.run).model)
    else:
        layout = full_layout(config.model)
    most = layout.count("enc")
    if keep > most:
        raise UserError(
            f"encoder_keep {keep}: the model of pair '{pair.name}' has only {most} encoder heads.",
            f"Keep at most {most}.",
        )


def _corpus(pair: PairConfig, config: Config, folder: Path) -> tuple[Path, list[Stage]]:
    """Where a pair's text is, and the stage that fetches it where it is a known corpus."""
    data = config.data
    if data.folder is not None:
        return data.folder, []
    out = folder / "corpora" / pair.name
    command = [HEADCOUNT, "data", data.corpus_argument, "--out", str(out)]
    command += ["--pair", f"{data.source}-{data.target}"]
    command += ["--pairs", str(data.pairs)] if data.pairs else []
    return out, [Stage(f"{pair.name}/data", "data", tuple(command), makes=(out,), seconds=20)]


def _side(corpus: Path, split: str, language: str) -> str:
    """One side of a corpus; a corpus that is still to be fetched will not be compressed."""
    plain = corpus / f"{split}.{language}"
    packed = plain.with_name(f"{plain.name}.gz")
    return str(packed if packed.is_file() and not plain.is_file() else plain)


def _train_command(pair: PairConfig, corpus: Path, run: Path) -> tuple[str, ...]:
    settings = (*pair.set, "data.corpus=null", "data.pairs=null", f"data.folder={corpus}")
    sets = [part for setting in settings for part in ("--set", setting)]
    return (HEADCOUNT, "train", str(pair.recipe), "--out", str(run), *sets)


def _full_stage(
    pair: PairConfig, config: Config, corpus: Path, run: Path, needs: tuple[str, ...]
) -> Stage:
    name = f"{pair.name}/full"
    if pair.run is not None:
        command = ("headcount.study.adopt", str(pair.run), str(run))
        reads = (pair.run / "model.safetensors", pair.run / "config.yaml")
        return Stage(name, "adopt", command, (run,), needs, reads, seconds=2)
    seconds = config.training.updates * SECONDS_PER_UPDATE
    if config.training.minutes is not None:
        seconds = min(seconds, 60 * config.training.minutes)
    return Stage(
        name, "train", _train_command(pair, corpus, run), (run,), needs, (pair.recipe,),
        ("--resume",), seconds,
    )  # fmt: skip


def _scratch_stage(
    study: StudyConfig, pair: PairConfig, model: Model, config: Config, corpus: Path, folder: Path
) -> Stage:
    """The same heads in each layer, from random weights, trained as the full model was.

    It has as many source tokens as the full model's recipe and the pruning together; where the
    recipe ends by the clock (`minutes`), as many minutes as the full model.
    """
    run = folder / "runs" / model.id
    heads = folder / "runs" / str(model.baseline)
    pruning, training = study.pruning_of(pair), config.training
    updates = training.updates_with(pruning.updates, pruning.batch_tokens)
    command = (*_train_command(pair, corpus, run), "--heads-from", str(heads))
    command += ("--set", f"training.seed={training.seed + (model.seed or 1) - 1}")
    command += ("--set", f"training.updates={updates}")
    seconds = updates * SECONDS_PER_UPDATE
    if training.minutes is not None:
        seconds = min(seconds, 60 * training.minutes)
    return Stage(
        f"{pair.name}/{_short(model, pair)}", "train", command, (run,),
        (f"{pair.name}/{_short_id(str(model.baseline), pair)}",), (pair.recipe,), ("--resume",),
        seconds,
    )  # fmt: skip


def _prune_stage(
    study: StudyConfig, pair: PairConfig, model: Model, corpus: Path, folder: Path
) -> Stage:
    run = folder / "runs" / model.id
    pruning = study.pruning_of(pair)
    command = [HEADCOUNT, "prune", str(folder / "runs" / str(model.baseline))]
    command += ["--train", str(corpus), "--out", str(run), "--sites", ",".join(model.sites)]
    command += ["--updates", str(pruning.updates), "--seed", str(model.seed)]
    for name in ("finetune", "learning_rate", "batch_tokens", "precision", "distil"):
        value = getattr(pruning, name)
        if value is not None:
            command += [f"--{name.replace('_', '-')}", f"{value}"]
    if model.penalty is not None:
        command += ["--penalty", f"{model.penalty:g}"]
    else:
        command += ["--keep", str(model.keep)]
    command += ["--by", str(model.method)] if model.method not in (GATES, EXACT) else []
    needs = [f"{pair.name}/full"]
    if model.method in MEASURES:
        needs.append(f"{pair.name}/full/rank")
    return Stage(
        f"{pair.name}/{_short(model, pair)}", "prune", tuple(command), (run,), tuple(needs),
        (), ("--resume",), pruning.updates * SECONDS_PER_UPDATE,
    )  # fmt: skip


def _analysis_stages(
    study: StudyConfig, pair: PairConfig, model: Model, corpus: Path, folder: Path, making: Stage
) -> Iterator[Stage]:
    """Score every model; rank and name the heads of some (`_ranked`, `_named`)."""
    run, analysis = folder / "runs" / model.id, study.analysis
    data = load_recipe(pair.recipe, pair.set).data
    scores = folder / "scores" / f"{model.id}.json"
    limit = str(analysis.score_sentences)
    yield Stage(
        f"{making.name}/score", "score",
        ("headcount.study.score_model", str(run), str(corpus), str(scores), limit),
        (scores, sentence_counts_path(scores)), (making.name,), (), (),
        analysis.score_sentences * SECONDS_PER_TRANSLATION,
    )  # fmt: skip
    if _ranked(model):
        yield _rank_stage(study, corpus, run, making, data)
    if _named(model):
        yield _roles_stage(study, pair, model, corpus, run, making, data)


def _rank_stage(
    study: StudyConfig, corpus: Path, run: Path, making: Stage, data: DataConfig
) -> Stage:
    analysis = study.analysis
    sentences = analysis.rank_sentences
    # The paper's choice (App. A.3), and the right one: ranks decide which heads some prunings keep,
    # and those are scored on the test set.
    dev = [_side(corpus, "dev", language) for language in (data.source, data.target)]
    return Stage(
        f"{making.name}/rank", "rank",
        (HEADCOUNT, "rank", str(run), "--src", dev[0], "--ref", dev[1], "--sites", analysis.sites,
         "--sentences", str(sentences)),
        (run / "analysis" / MEASURES_FILE,), (making.name,), (), (),
        sentences * SECONDS_PER_RANKED_SENTENCE,
    )  # fmt: skip


def _roles_stage(
    study: StudyConfig,
    pair: PairConfig,
    model: Model,
    corpus: Path,
    run: Path,
    making: Stage,
    data: DataConfig,
) -> Stage:
    sentences = study.analysis.role_sentences
    parses: tuple[str, ...] = ("--src", _side(corpus, "test", data.source))
    if pair.conllu:
        parses = ("--conllu", str(pair.conllu))
    elif data.source != SPACY_LANGUAGE:  # no parser: the roles that need none
        parses += ("--relations", "none")
    # After the ranking: both add columns to the same head table.
    needs = (making.name, *([f"{making.name}/rank"] if _ranked(model) else []))
    return Stage(
        f"{making.name}/roles", "roles",
        (HEADCOUNT, "roles", str(run), *parses, "--sentences", str(sentences)),
        (run / "analysis" / "roles.json",), needs, (pair.conllu,) if pair.conllu else (), (),
        sentences * SECONDS_PER_ROLE_SENTENCE,
    )  # fmt: skip


def _ranked(model: Model) -> bool:
    """Whether heads are ranked: in full models, and where training set their number.

    Not in controls, which keep all heads: they are there for their BLEU.
    """
    if model.kind == PRUNED:
        return method_named(str(model.method)).needs == "penalty" and not model.is_control
    return model.kind == FULL


def _named(model: Model) -> bool:
    """Whether heads are named: as for ranks, and where training chose heads (first seed)."""
    learned = model.kind == PRUNED and method_named(str(model.method)).learned
    return _ranked(model) or (learned and not model.is_control and model.seed == 1)


def _bench_stage(study: StudyConfig, folder: Path, stages: list[Stage]) -> Stage:
    """Time the first pair's full model against its prunings by a penalty, in one process."""
    pair = study.pairs[0]
    chosen = [model for model in models_of(study, pair) if _ranked(model)]
    runs = [str(folder / "runs" / model.id) for model in chosen]
    needs = [f"{pair.name}/{_short(model, pair)}" for model in chosen]
    assert {stage.name for stage in stages} >= set(needs)
    out = folder / "bench.json"
    config = load_recipe(pair.recipe, pair.set)
    source = _side(_corpus(pair, config, folder)[0], "test", config.data.source)
    command = ("headcount.study.bench_models", str(out), source, *runs)
    return Stage("bench", "bench", command, (out,), tuple(needs), seconds=60)


def _short(model: Model, pair: PairConfig) -> str:
    return _short_id(model.id, pair)


def _short_id(model: str, pair: PairConfig) -> str:
    return model.removeprefix(f"{pair.name}-")
