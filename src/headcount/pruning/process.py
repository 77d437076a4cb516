"""One pruning: choose heads while training, fix the choice, cut, check, fine-tune, write."""

from __future__ import annotations

import copy
import shutil
import warnings
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headcount.bench.costs import Costs
from headcount.config import Config
from headcount.data.batches import collate
from headcount.data.corpus_folder import corpus_of_run, count_pairs, load_corpus
from headcount.distribution import Workers
from headcount.errors import Notice, UserError
from headcount.files import read_lines
from headcount.heads import Head
from headcount.model.arithmetic import count_parameters, weights_of
from headcount.model.gating import gated, masked, remove_heads
from headcount.model.transformer import Transformer
from headcount.progress import Progress
from headcount.pruning.calibration import calibrate, current_costs
from headcount.pruning.objective import SETTLED, GatedObjective, train_parts
from headcount.pruning.record import Record, read_record, remarks_on, write_record
from headcount.pruning.settings import PruneSettings, make_selection
from headcount.run import Run, load_run
from headcount.training.checkpoints import FOLDER as CHECKPOINTS
from headcount.training.checkpoints import TrainingState, save_checkpoint
from headcount.training.distillation import Teacher
from headcount.training.loop import Moments, ParameterGroup, Trainer
from headcount.training.masking import asks_of
from headcount.training.metrics import dev_loss, read_metrics
from headcount.training.objective import inverse_square_root
from headcount.training.preparation import prepare_together
from headcount.training.train import Observer, evaluate_run

LINES = 2000
MOST_UNKNOWN = 0.05


def data_config(config: Config, folder: Path) -> Config:
    """The configuration of a run, with its data taken from another folder."""
    corpus = corpus_of_run(folder, config.data.source, config.data.target)
    source, target = corpus.languages
    data = {"folder": folder, "corpus": None, "pairs": None, "source": source, "target": target}
    return config.model_copy(update={"data": config.data.model_copy(update=data)})


def check_corpus(run: Run, folder: Path) -> None:
    """Stop where the folder has no dev set, or other languages or another vocabulary than the run.

    Called before anything is written, so that a refused pruning leaves nothing behind.
    """
    source, target = run.config.data.source, run.config.data.target
    asks_of(run)  # stops where there is nothing to train the run for
    corpus = load_corpus(folder, check=False) if _described(folder) else None
    if (
        source != target
        and corpus
        and set(corpus.languages) != {source, target}  # the same pair serves both directions
    ):
        raise UserError(
            f"{folder} is {corpus.source_language}-{corpus.target_language}, but {run.folder}"
            f" translates {source}-{target}.",
            "Give the corpus that the run was trained on, or one like it.",
        )
    corpus = corpus_of_run(folder, source, target)
    if not count_pairs(corpus, "dev"):
        raise UserError(f"{corpus.path('dev', 'source')} is empty.", "Give held-out pairs.")
    sides = {"source": run.source_tokenizer, "target": run.target_tokenizer}
    for side, tokenizer in sides.items():
        path = corpus.path("train", side)
        ids, _ = tokenizer.encode_flat(list(islice(read_lines(path), LINES)))
        unknown = float((ids == tokenizer.unk).mean()) if len(ids) else 0.0
        if unknown > MOST_UNKNOWN:
            raise UserError(
                f"{path}: {unknown:.0%} of its tokens are not in the vocabulary of {run.folder}.",
                "Give the corpus that the run was trained on, or one like it.",
            )


def _described(folder: Path) -> bool:
    return (folder / "corpus.json").is_file()


DIFFERENCE = "largest_logit_difference"

TOLERANCE = 1e-5
"""How far logits may differ, relative to the largest one, when heads are removed: rounding."""


class Pruning:
    """The parts of one pruning: the new run, its objective, its training loop, its record."""

    def __init__(
        self,
        source: Run,
        train: Path,
        out: Path,
        settings: PruneSettings,
        record: Record,
        progress: Progress,
        observe: Observer,
        workers: Workers,
        teacher: Teacher | None = None,
    ) -> None:
        """`settings` are resolved; the model of `source` is trained in place."""
        self.settings, self.record, self.workers = settings, record, workers
        self.train, self.progress = train, progress
        config = data_config(source.config, train)
        training = settings.training(config.training, source.folder)
        config = config.model_copy(update={"training": training})
        self.prepared = prepare_together(
            workers, config.data, config.training, progress, source.folder
        )
        model = untrained(source, settings.seed) if settings.from_scratch else source.model
        self.target = Run(
            out,
            config,
            model,
            source.source_tokenizer,
            source.target_tokenizer,
            source.source_frequencies,
        )
        scores = self._scores(source, progress)
        costs = Costs(**record["costs"]) if record.get("costs") else None
        self.objective = GatedObjective(
            model,
            config.training.label_smoothing,
            make_selection(settings, model.heads, workers.device, scores, costs, weights_of(model)),
            teacher=teacher,
            choosing=settings.choosing,
            finetune=settings.finetune or 0,
            ask=asks_of(source),
        )
        self.trainer = self._make_trainer(observe)

    def run(self) -> None:
        """From the baseline, or from the last checkpoint, to the finished run.

        Three phases: heads are chosen while the model trains; the choice is fixed, what that costs
        is measured, and closed heads are cut out; what is left is fine-tuned, faster without them.
        """
        if "before" not in self.record and not self.settings.from_scratch:
            self._note(before=evaluate_run(self.target, self.prepared.dev, self.workers))
        if not self.settings.method.learned:
            self._calibrate()  # before anything is masked; what training decides comes later
        progress = self._choose()
        if not self.objective.fixed:
            self._fix(progress.update)
        if progress.stopped == SETTLED and self.settings.finetune:
            progress = self.trainer.run()
        self._finish(progress)

    def _choose(self) -> TrainingState:
        """Train until heads have been chosen, or continue where an earlier call stopped."""
        if not self.settings.updates:
            return TrainingState(stopped="no fine-tuning")
        checkpoint = self.trainer.newest_checkpoint()
        if checkpoint is None:
            if self.workers.leader:
                (self.target.folder / "metrics.jsonl").unlink(missing_ok=True)
            self._warn_of_doubts()
        else:
            self.trainer.load_objective(checkpoint)
            if self.objective.fixed:  # the checkpoint is of a model without the closed heads
                self._calibrate()
                self._go_on_with(remove_heads(self.target.model, self.objective.selection.closed()))
            self.trainer.load(checkpoint)
        if self.objective.fixed:
            return replace(self.trainer.progress, stopped=SETTLED)
        return self.trainer.run()

    def _calibrate(self) -> None:
        """With a target in time: time the model that was chosen, and choose once more.

        Only once: the prices that follow are in `pruning.json`, for a resumed pruning and for all
        processes. A pruning that an earlier version has begun goes on without them.
        """
        selection, record = self.objective.selection, self.record
        if not record.get("costs") or "calibrated" not in record:
            return
        if record["calibrated"] is None and self.workers.leader:
            sites, costs = self.settings.sites, current_costs(record)
            chosen = self.target.model.heads.keeping(selection.kept(), sites)
            timed = calibrate(self.target, chosen, sites, self.train, costs, self.progress)
            self._note(calibrated=timed.to_json())
        self.workers.wait()
        record["calibrated"] = read_record(self.target.folder)["calibrated"]
        selection.reprice(current_costs(record))

    def _warn_of_doubts(self) -> None:
        """Warn before the first update if there are too few to choose heads."""
        rate = self.settings.gate_learning_rate or 0.0
        doubts = self.objective.selection.doubts(self.settings.choosing, rate)
        if doubts and self.workers.leader:
            warn(f"{doubts}.")

    def _groups(self) -> list[ParameterGroup]:
        """The weights that train and, until heads are chosen, the gates; their learning rates."""
        weights = train_parts(self.target.model, self.settings.train_only or ())
        gates = [] if self.objective.fixed else self.objective.selection.parameters()
        gate_rate = self.settings.gate_learning_rate or 0.0
        groups = [
            ParameterGroup(weights, self._learning_rate),
            ParameterGroup(gates, lambda update: gate_rate),
        ]
        return [group for group in groups if group.parameters]

    def _make_trainer(self, observe: Observer) -> Trainer:
        return Trainer(
            self.target.model,
            self.target.config.training,
            self.prepared.train,
            self.target.target_tokenizer,
            self.objective,
            self._groups(),
            self.target.folder,
            self._dev_loss,
            self.workers,
            observe,
        )

    def _learning_rate(self, update: int) -> float:
        """Constant, or from scratch the baseline's; falling to 0 once heads are chosen."""
        rate = self.settings.learning_rate
        if self.settings.from_scratch:
            training = self.target.config.training
            rate = inverse_square_root(
                update,
                scale=training.learning_rate_scale,
                width=self.target.config.model.width,
                warmup=training.warmup,
            )
        return rate * self.objective.share_left(update)

    def _dev_loss(self) -> dict[str, Any]:
        """What the loop evaluates: the dev loss with the choice as it stands."""
        with gated(self.target.model, self.objective.binary_gates()):
            ids, ask = self.target.target_tokenizer, self.objective.ask
            loss = dev_loss(self.target.model, self.prepared.dev, ids, self.workers, ask)
            return {"dev_loss": loss}

    def _fix(self, update: int) -> None:
        """Make gates binary, note what that costs in loss and BLEU, and cut closed heads out."""
        model, selection = self.target.model.eval(), self.objective.selection
        if self.settings.method.learned:
            self._calibrate()
        # The line belongs to the next update: if that update is repeated, so is the choice.
        line: dict[str, Any] = {"kind": "decided", "update": update + 1, "chosen_in": update}
        if selection.relaxed:
            with gated(model, self.objective.typical_gates()):
                line["gated"] = evaluate_run(self.target, self.prepared.dev, self.workers)
        with gated(model, self.objective.binary_gates()):
            line["binary"] = evaluate_run(self.target, self.prepared.dev, self.workers)
        line["undecided"] = [str(head) for head in selection.undecided()]
        smaller = remove_heads(model, selection.closed())
        line[DIFFERENCE] = self._check_removal(model, selection.closed(), smaller)
        self.trainer.log.write(selection.metrics() | line)
        self._go_on_with(smaller)

    def _go_on_with(self, smaller: Transformer) -> None:
        """Train a model without the closed heads from here on."""
        model, self.target.model = self.target.model, smaller
        self.objective.fix(smaller)
        if self.settings.finetune:
            self.trainer.optimiser.zero_grad()  # gradients take as much memory as weights
            closed = self.objective.selection.closed()
            moments = cut_moments(self.trainer.optimiser, model, smaller, closed)
            self.trainer.take_model(smaller, self._groups(), moments)

    def _finish(self, progress: TrainingState) -> None:
        """Write the run; its record comes last."""
        smaller = self.target.model.eval()
        kept = smaller.heads.heads(self.settings.sites)
        closed = [head for head in self.objective.selection.heads if head not in set(kept)]
        after = evaluate_run(self.target, self.prepared.dev, self.workers)
        if not self.workers.leader:
            return
        self.target.save()
        lines = read_metrics(self.target.folder / "metrics.jsonl")
        decided = [line for line in lines if line["kind"] == "decided"][-1]
        self._note(
            decided={k: v for k, v in decided.items() if k not in ("kind", "update", DIFFERENCE)},
            after=after,
            kept=[str(head) for head in kept],
            closed=[str(head) for head in closed],
            heads=smaller.heads.to_json(),
            parameters=count_parameters(smaller),
            largest_logit_difference=decided[DIFFERENCE],
            progress=vars(progress),
        )
        for text in remarks_on(self.record):
            warn(text)

    def _check_removal(self, model: Transformer, closed: list[Head], smaller: Transformer) -> float:
        """The largest difference of logits between the masked and the cut model, on dev text.

        More than rounding is an error, and the run is not written.
        """
        ids = self.target.target_tokenizer
        shards = self.prepared.dev.shards
        first = torch.arange(min(16, len(shards))).numpy()
        batch = collate(shards, first, pad=ids.pad, start=ids.start, eos=ids.eos)
        batch = batch.to(self.workers.device)
        with torch.inference_mode():
            with masked(model, closed):
                before = model(batch.source, batch.target_input)
            after = smaller(batch.source, batch.target_input)
        return check_equal(before, after)

    def _scores(self, source: Run, progress: Progress) -> dict[Head, float] | None:
        """The heads' scores where heads are pruned by score: measured once, then kept."""
        measure = self.settings.method.scores
        if measure is None:
            return None
        if "scores" not in self.record:
            scores = measure(source, self.settings, self.prepared.corpus, self.workers, progress)
            self._note(scores={str(head): score for head, score in scores.items()})
        return {Head.parse(head): score for head, score in self.record["scores"].items()}

    def _note(self, **entries: Any) -> None:
        """Write something into `pruning.json`."""
        self.record |= entries
        if self.workers.leader:
            write_record(self.target.folder, self.record)


def cut_moments(
    optimiser: torch.optim.Adam, model: Transformer, smaller: Transformer, closed: list[Head]
) -> Moments:
    """What Adam has kept of a model's parameters, cut as the parameters themselves are.

    So training goes on as if closed heads were still there and multiplied by 0.
    """
    parameters, left = dict(model.named_parameters()), dict(smaller.named_parameters())
    states = {name: optimiser.state[p] for name, p in parameters.items() if p in optimiser.state}
    names = left.keys() & states.keys()
    moments: dict[Tensor, dict[str, Tensor]]
    moments = {left[name]: {"step": states[name]["step"]} for name in names}
    for moment in ("exp_avg", "exp_avg_sq") if states else ():
        values = {name: nn.Parameter(states[name][moment]) for name in states}
        known = {id(p): values.get(name, p) for name, p in parameters.items()}
        cut = remove_heads(copy.deepcopy(model, known), closed)  # copies no weights
        for name in names:
            moments[left[name]][moment] = cut.get_parameter(name).data
    return moments


def warn(text: str) -> None:
    """Warn about something that changes the meaning of a result; quiet commands print it too."""
    warnings.warn(Notice(text), stacklevel=2)


def check_equal(masked_logits: Tensor, cut_logits: Tensor) -> float:
    """The largest difference between the logits of a masked model and of the cut one.

    Stops where it is more than `TOLERANCE` of the largest logit.
    """
    difference = float((masked_logits - cut_logits).abs().max())
    scale = max(1.0, float(masked_logits.abs().max()))
    if not difference <= TOLERANCE * scale:
        raise UserError(
            f"Removing the closed heads has changed the model: its logits differ by up to"
            f" {difference:.3g}, where {TOLERANCE * scale:.3g} is rounding.",
            "The pruned run was not written; please report this as a bug.",
        )
    return difference


def untrained(source: Run, seed: int) -> Transformer:
    """A model like the run's, with all of its heads, as it is before training."""
    torch.manual_seed(seed)
    source_tokenizer, target_tokenizer = source.source_tokenizer, source.target_tokenizer
    model = Transformer(
        source.config.model,
        source_tokenizer.size,
        target_tokenizer.size,
        source_tokenizer.pad,
        source.model.heads,
        target_tokenizer.pad,
    )
    return model.to(source.model.output_weight.device)


def close(folder: Path) -> None:
    """The last step: one checkpoint of the pruned model, for further training, replaces others."""
    run, record = load_run(folder), read_record(folder)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    optimiser = torch.optim.Adam(run.model.parameters())
    progress = record["progress"]
    save_checkpoint(folder, progress["update"], run.model, optimiser, {}, progress, keep=1)
    write_record(folder, record | {"finished": True})
