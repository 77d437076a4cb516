"""`headcount train`: from a recipe to a run folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from headcount.config import Config, load_recipe
from headcount.distribution import Workers, connect
from headcount.errors import Interrupted, Notice, UserError
from headcount.files import owned
from headcount.heads import HeadLayout, stack_of
from headcount.model.transformer import Transformer, side_of
from headcount.progress import Progress, silent
from headcount.run import (
    CONFIG,
    HEADS,
    WEIGHTS,
    Run,
    load_config,
    load_heads,
    load_run,
    resolve_run,
    save_weights,
)
from headcount.scoring import quick_bleu
from headcount.training.checkpoints import FOLDER as CHECKPOINTS
from headcount.training.checkpoints import TrainingState, list_checkpoints, newest_sound
from headcount.training.distillation import Teacher, load_teacher
from headcount.training.loop import (
    ALL_DONE,
    FLAT,
    TIME_IS_UP,
    ParameterGroup,
    Trainer,
    why_over,
)
from headcount.training.masking import asks_of
from headcount.training.metrics import FILE as METRICS
from headcount.training.metrics import FINAL, HeldOut, dev_loss, tokens_seen, watch_heads
from headcount.training.objective import Objective, cooldown, inverse_square_root
from headcount.training.preparation import (
    SIDES,
    Prepared,
    begun_from,
    check_text,
    prepare_together,
    record_text,
    with_absolute_folder,
)

Observer = Callable[[dict[str, Any]], None]


def train(
    recipe: Config | Path | str,
    out: Path | str,
    resume: bool = False,
    heads: HeadLayout | None = None,
    progress: Progress = silent,
    observe: Observer = lambda line: None,
    *,
    set: Iterable[str] = (),
    start_from: Path | str | None = None,
) -> tuple[Run, TrainingState]:
    """Train a Transformer translation model; under torchrun on several devices or machines.

    It is written into the folder `out`; `resume` goes on where an earlier call stopped.

    `recipe` is a recipe's path, with `set` for changes (`["model.layers=3"]`), or a configuration.
    When told to stop (Ctrl-C, SIGTERM), it saves and raises `Interrupted`.

    `heads` gives each layer its own list of heads (a pruned run's, for Table 2's "from scratch").
    `start_from` is a run whose tokenizers and weights this training begins with; the optimiser and
    its schedule begin anew, and tokens are counted on. Where the recipe has a decoder of another
    shape, the run's encoder and embeddings are taken and the decoder begins anew. Where it has
    another target language, so do the target vocabulary, its embeddings and the output layer.
    """
    config = recipe if isinstance(recipe, Config) else load_recipe(Path(recipe), set)
    out = Path(out)
    config = with_absolute_folder(config)
    with connect() as workers, owned(out, workers.leader):
        saved = resume and bool(list_checkpoints(out))
        workers.wait()  # all have looked before the leader sets damaged ones aside
        if workers.leader:
            _check_folder(config, out, resume)
            if resume:
                _check_finished(config, out)
        earlier = out if resume and (out / HEADS).exists() else None
        begun, first = None, begun_from(out) if earlier else None
        if earlier and saved:
            if start_from and (not first or resolve_run(start_from).resolve() != first.resolve()):
                raise UserError(
                    f"{out} did not begin with {start_from}.", "Resume it without --start-from."
                )
        else:  # nothing of this training has been saved yet
            start_from = start_from or first
            begun = _starting_point(start_from, config) if start_from else None
        if begun and heads is not None:
            raise UserError(
                "--heads-from and --start-from both say which heads there are.", "Give one of them."
            )
        if begun:
            heads = _heads_to_begin_with(begun, config)
        elif earlier and heads is None:
            heads = load_heads(earlier, config.model)  # a pruned run has its own
        origin = earlier or (begun.folder if begun else None)
        sides = SIDES[:1] if begun and _other_language(begun, config) else SIDES
        prepared = prepare_together(workers, config.data, config.training, progress, origin, sides)
        if earlier:
            check_text(earlier, prepared)
        run = _new_run(config, out, prepared, heads, workers)
        if begun:
            _begin_with(run, begun)
            differences = _other_language(begun, config) + _other_decoder(begun, config)
            if workers.leader and differences:
                notice = f"The decoder begins anew: {start_from} has another {differences[0]}."
                warnings.warn(Notice(notice), stacklevel=2)
        teacher = load_teacher(config.training, run, workers.device)
        trainer = make_trainer(run, prepared, workers, observe, teacher)
        if begun:
            trainer.progress.source_tokens = tokens_seen(begun.folder)
        if not (resume and trainer.resume()):
            if first and not begun:
                raise UserError(f"{out} has no undamaged checkpoint.", f"Begin again from {first}.")
            if workers.leader:
                (out / METRICS).unlink(missing_ok=True)  # from a call that wrote no checkpoint
        if workers.leader:
            run.save()
            record_text(out, prepared, begun.folder if begun else first)
        try:
            state = trainer.run()
        except Interrupted:
            if workers.leader:
                save_weights(run.model, out / WEIGHTS)
            raise
        run.model.eval()
        averaged = trainer.average(
            lambda: dev_loss(run.model, prepared.dev, run.target_tokenizer, workers)
        )
        line = {"kind": FINAL, "update": state.update, "averaged": averaged}
        trainer.tell({**line, **trainer.evaluate()})
        if workers.leader:
            save_weights(run.model, out / WEIGHTS)
        workers.wait()
    run.model.eval()
    return run, state


def make_trainer(
    run: Run,
    prepared: Prepared,
    workers: Workers,
    observe: Observer,
    teacher: Teacher | None = None,
) -> Trainer:
    """The loop with the paper's objective, optimiser and schedule (App. B.3)."""
    model, training = run.model, run.config.training

    def rate(update: int) -> float:
        plain = inverse_square_root(
            update,
            scale=training.learning_rate_scale,
            width=run.config.model.width,
            warmup=training.warmup,
        )
        return plain * cooldown(update, updates=training.updates, length=training.cooldown)

    def evaluate() -> dict[str, Any]:
        line = evaluate_run(run, prepared.dev, workers)
        for name, held_out in prepared.domains.items():
            line[f"dev_loss {name}"] = dev_loss(model, held_out, run.target_tokenizer, workers)
        if workers.leader and math.isfinite(line["dev_loss"]):
            save_weights(model, run.folder / WEIGHTS)
        return line

    if training.hold_positions:
        model.encoder_positions.requires_grad_(False)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Trainer(
        model,
        training,
        prepared.train,
        prepared.target_tokenizer,
        Objective(model, training.label_smoothing, teacher),
        [ParameterGroup(trained, rate)],
        run.folder,
        evaluate,
        workers,
        observe,
    )


def evaluate_run(run: Run, dev: HeldOut, workers: Workers) -> dict[str, Any]:
    """Dev loss, greedy dev BLEU and the specialisation of encoder heads.

    An encoder alone has no BLEU; its loss is that of hidden tokens.
    """
    ids, model, ask = run.target_tokenizer, run.model, asks_of(run)
    line: dict[str, Any] = {"dev_loss": dev_loss(model, dev, ids, workers, ask)}
    if workers.leader:
        if dev.references and ask is None:
            line["dev_bleu"] = quick_bleu(run, dev.sources, dev.references)
        if run.config.training.watch_heads:
            line |= watch_heads(model, dev, ids, workers.device)
    return line


def _check_folder(config: Config, out: Path, resume: bool) -> None:
    """A run is never overwritten by accident, nor resumed with another model."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file.", "Choose another --out.")
    if not (out / CONFIG).exists():
        for name in (CHECKPOINTS, METRICS):
            if (out / name).exists():
                raise UserError(
                    f"{out} is not a run folder, but holds {name} of something else.",
                    "Choose another --out.",
                )
        return
    if not resume:
        raise UserError(
            f"{out} already holds a run.", "Add --resume to go on with it, or choose another --out."
        )
    before = with_absolute_folder(load_config(out))
    for section in ("model", "data"):
        for _, difference in _differences(section, before, config):
            raise UserError(
                f"{out} was begun with another {difference}.",
                "Resume with the same recipe, or choose another --out.",
            )
    for key, difference in _differences("training", before, config):
        if key == "hold_positions" and list_checkpoints(out):  # Adam has other parameters then
            raise UserError(
                f"{out} was begun with another {difference}.",
                "Resume with the same recipe, or let another --out begin with it (--start-from).",
            )


OPEN_AT_THE_END = (
    *("updates", "minutes", "patience", "average_checkpoints"),
    *("log_every", "evaluate_every", "save_every", "keep_checkpoints"),
    *("dev_sentences", "bleu_sentences", "watch_heads"),
)
"""Settings that may still change when a training is over. The last call decides how many
checkpoints are averaged; the others do not change weights."""

GO_ON_WITH = {
    ALL_DONE: "raise training.updates",
    FLAT: "raise training.patience",
    TIME_IS_UP: "raise training.minutes",
}


def _check_finished(config: Config, out: Path) -> None:
    """Where nothing is left to train, settings are not replaced: the weights come from these."""
    newest = newest_sound(out)
    if newest is None:
        return
    state = TrainingState.of(newest)
    if state.update > config.training.updates:
        raise UserError(
            f"{out} has {state.update} updates already, more than training.updates.",
            "Give at least as many, or choose another --out.",
        )
    reason = why_over(state, config.training)
    if not reason:
        return
    before = with_absolute_folder(load_config(out))
    for key, difference in _differences("training", before, config):
        if key not in OPEN_AT_THE_END:
            raise UserError(
                f"{out} has been trained to its end, with another {difference}.",
                f"Choose another --out, or {GO_ON_WITH[reason]} to train on.",
            )


def _differences(section: str, before: Config, now: Config) -> Iterator[tuple[str, str]]:
    """The settings of a section that differ: `width`, `model.width (64, now 128)`."""
    old, new = getattr(before, section), getattr(now, section)
    for key in type(old).model_fields:
        if getattr(old, key) != getattr(new, key):
            yield key, f"{section}.{key} ({getattr(old, key)!r}, now {getattr(new, key)!r})"


DECODER_SHAPE = ("decoder_layers", "decoder_heads", "decoder_head_width", "decoder_ff_width")


def _comparable(config: Config) -> Config:
    """The same model with its decoder's numbers written out, without what sets first weights."""
    model = config.model
    update = {
        "decoder_heads": model.heads_at("dec"),
        "decoder_head_width": model.head_width_at("dec"),
        "decoder_ff_width": model.ff_width_at("dec_ff"),
        "position_spread": None,
        "position_spread_layers": None,
    }
    return config.model_copy(update={"model": model.model_copy(update=update)})


def _starting_point(folder: Path | str, config: Config) -> Run:
    """The run that a training begins with, if its model is the recipe's, or all but the decoder."""
    run = load_run(folder)
    both_decode = run.config.model.decoder_layers and config.model.decoder_layers
    if run.config.data.source != config.data.source:
        raise UserError(
            f"{folder} reads {run.config.data.source}, the recipe {config.data.source}.",
            "Only the target language may differ.",
        )
    if _other_language(run, config) and config.model.tie in ("inputs", "all"):
        raise UserError(
            f"{folder} writes {run.config.data.target}, the recipe {config.data.target}, and both"
            " sides share one vocabulary (model.tie).",
            "A run with an embedding matrix for each side can begin anew on the target side.",
        )
    allowed = DECODER_SHAPE if both_decode else ()
    for key, difference in _differences("model", _comparable(run.config), _comparable(config)):
        if key not in allowed:
            raise UserError(
                f"{folder} has another {difference}.",
                "Change the recipe's model to that of the run; only its decoder may differ.",
            )
    return run


def _other_decoder(begun: Run, config: Config) -> list[str]:
    """In what the recipe's decoder differs from that of the run that a training begins with."""
    both = _comparable(begun.config), _comparable(config)
    return [difference for _, difference in _differences("model", *both)]


def _other_language(begun: Run, config: Config) -> list[str]:
    """In what the recipe's target language differs from that of the run a training begins with."""
    before, now = begun.config.data.target, config.data.target
    return [f"data.target ({before!r}, now {now!r})"] if before != now else []


def _heads_to_begin_with(begun: Run, config: Config) -> HeadLayout:
    """The heads of the run that a training starts from, without those of another decoder."""
    heads = begun.model.heads
    if not _fresh_sides(begun, config):
        return heads
    return HeadLayout(
        {site: each for site, each in heads.layers.items() if stack_of(site) == "enc"}
    )


def _fresh_sides(begun: Run, config: Config) -> tuple[str, ...]:
    """Sides of the model that are not taken from the run that a training begins with."""
    if _other_language(begun, config):
        return "decoder", "target", "output"
    return ("decoder",) if _other_decoder(begun, config) else ()


def _begin_with(run: Run, begun: Run) -> None:
    """Take over the weights of a run, but for those of a decoder that has another shape now."""
    weights = begun.model.state_dict()
    if sides := _fresh_sides(begun, run.config):
        fresh = run.model.state_dict()
        weights = {name: (fresh if side_of(name) in sides else weights)[name] for name in fresh}
    run.model.load_state_dict(weights)


def _new_run(
    config: Config, out: Path, prepared: Prepared, heads: HeadLayout | None, workers: Workers
) -> Run:
    source, target = prepared.source_tokenizer, prepared.target_tokenizer
    torch.manual_seed(config.training.seed)
    model = Transformer(config.model, source.size, target.size, source.pad, heads, target.pad)
    frequencies = prepared.train.source_frequencies
    return Run(out, config, model.to(workers.device), source, target, frequencies)
