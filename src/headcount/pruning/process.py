"""One pruning on its way: choose heads while training, make gates binary, cut, measure, write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from headcount.bench.arithmetic import count_parameters
from headcount.data.batches import collate
from headcount.heads import Head
from headcount.model.gating import gated, masked
from headcount.model.removal import remove_heads
from headcount.model.transformer import Transformer
from headcount.progress import Progress
from headcount.pruning.choice import make_selection
from headcount.pruning.data import data_config
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.objective import GatedObjective
from headcount.pruning.record import Record, read_record, write_record
from headcount.pruning.settings import PruneSettings
from headcount.pruning.trainable import train_parts
from headcount.run import Run, load_run
from headcount.training.checkpoints import FOLDER as CHECKPOINTS
from headcount.training.checkpoints import save_checkpoint
from headcount.training.distribution import Workers
from headcount.training.evaluation import dev_loss
from headcount.training.loop import ParameterGroup, Trainer, TrainingState
from headcount.training.metrics import read_metrics
from headcount.training.preparation import prepare_together
from headcount.training.schedule import inverse_square_root
from headcount.training.train import Observer, evaluate_run


class Pruning:
    """The parts that belong together: the run to be, its objective, its loop, its record."""

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
    ) -> None:
        """`settings` are resolved; the model of `source` is trained in place."""
        self.settings, self.record, self.workers = settings, record, workers
        config = data_config(source.config, train)
        config = config.model_copy(update={"training": settings.training(config.training)})
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
        scores = self._scores(source)
        updates, finetune = settings.updates or 0, settings.finetune or 0
        self.objective = GatedObjective(
            model,
            config.training.label_smoothing,
            make_selection(settings, model.heads, workers.device, scores),
            choosing=updates - finetune,
            finetune=finetune,
            decide=self._decide,
        )
        self.trainer = self._make_trainer(observe)

    def run(self) -> None:
        """From the baseline, or from the last checkpoint, to the finished run."""
        if "before" not in self.record and not self.settings.from_scratch:
            self._note(before=evaluate_run(self.target, self.prepared.dev, self.workers))
        progress = self._train()
        if self.objective.decided_at is None:  # the clock has stopped it, or nothing was trained
            self.objective.decided_at = progress.update
            self._decide(progress.update)
        self._finish(progress)

    def _train(self) -> TrainingState:
        if not self.settings.updates:
            return TrainingState(stopped="no fine-tuning")
        if not self.trainer.resume() and self.workers.leader:
            (self.target.folder / "metrics.jsonl").unlink(missing_ok=True)
        progress = self.trainer.run()
        if progress.stopped == "interrupted":
            raise KeyboardInterrupt(
                f"Stopped at update {progress.update}; the same command with --resume goes on."
            )
        return progress

    def _make_trainer(self, observe: Observer) -> Trainer:
        model, settings = self.target.model, self.settings
        weights = train_parts(model, settings.train_only or ())
        gates = self.objective.selection.parameters()
        gate_rate = settings.gate_learning_rate or 0.0
        groups = [
            ParameterGroup(weights, self._learning_rate),
            ParameterGroup(gates, lambda update: gate_rate),
        ]
        return Trainer(
            model,
            self.target.config.training,
            self.prepared.train,
            self.target.target_tokenizer,
            self.objective,
            [group for group in groups if group.parameters],
            self.target.folder,
            self._dev_loss,
            self.workers,
            observe,
        )

    def _learning_rate(self, update: int) -> float:
        """Constant, or from scratch the baseline's; falling to 0 while heads are held fixed."""
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
        """What the loop looks at now and then: the loss with the choice as it stands."""
        with gated(self.target.model, self.objective.binary_gates()):
            ids = self.target.target_tokenizer
            return {"dev_loss": dev_loss(self.target.model, self.prepared.dev, ids, self.workers)}

    def _decide(self, update: int) -> None:
        """Note what becoming binary costs; called when heads have been chosen."""
        model, selection = self.target.model, self.objective.selection
        was_training = model.training
        model.eval()
        # The line belongs to the next update: where that is to be made again, so is the choice.
        line: dict[str, Any] = {"kind": "decided", "update": update + 1, "chosen_in": update}
        if isinstance(selection, HardConcreteGates):
            with gated(model, self.objective.typical_gates()):
                line["gated"] = evaluate_run(self.target, self.prepared.dev, self.workers)
        with gated(model, self.objective.binary_gates()):
            line["binary"] = evaluate_run(self.target, self.prepared.dev, self.workers)
        model.train(was_training)
        line["undecided"] = [str(head) for head in selection.undecided()]
        self.trainer.log.write(selection.metrics() | line)

    def _finish(self, progress: TrainingState) -> None:
        """Cut closed heads out, measure, and write the run; its record comes last."""
        selection = self.objective.selection
        model = self.target.model.eval()
        smaller = remove_heads(model, selection.closed())
        difference = self._difference(model, selection.closed(), smaller)
        self.target.model = smaller
        after = evaluate_run(self.target, self.prepared.dev, self.workers)
        if not self.workers.leader:
            return
        self.target.save()
        lines = read_metrics(self.target.folder / "metrics.jsonl")
        decided = [line for line in lines if line["kind"] == "decided"][-1]
        self._note(
            decided={k: v for k, v in decided.items() if k not in ("kind", "update")},
            after=after,
            kept=[str(head) for head in selection.kept()],
            closed=[str(head) for head in selection.closed()],
            heads=smaller.heads.to_json(),
            parameters=count_parameters(smaller),
            largest_logit_difference=difference,
            progress=vars(progress),
        )

    def _difference(self, model: Transformer, closed: list[Head], smaller: Transformer) -> float:
        """The largest difference of logits between the masked and the cut model, on dev text."""
        ids = self.target.target_tokenizer
        shards = self.prepared.dev.shards
        first = torch.arange(min(16, len(shards))).numpy()
        batch = collate(shards, first, pad=ids.pad, start=ids.start, eos=ids.eos)
        batch = batch.to(self.workers.device)
        with torch.inference_mode():
            with masked(model, closed):
                before = model(batch.source, batch.target_input)
            after = smaller(batch.source, batch.target_input)
        return float((before - after).abs().max())

    def _scores(self, source: Run) -> dict[Head, float] | None:
        """The heads' scores where heads are pruned by score: measured once, then kept."""
        measure = self.settings.method.scores
        if measure is None:
            return None
        if "scores" not in self.record:
            scores = measure(source, self.settings, self.prepared.corpus, self.workers)
            self._note(scores={str(head): score for head, score in scores.items()})
        return {Head.parse(head): score for head, score in self.record["scores"].items()}

    def _note(self, **entries: Any) -> None:
        """Write something into `pruning.json`."""
        self.record |= entries
        if self.workers.leader:
            write_record(self.target.folder, self.record)


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
    """The last step: one checkpoint of the pruned model, to train on from, replaces the others."""
    run, record = load_run(folder), read_record(folder)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
    optimiser = torch.optim.Adam(run.model.parameters())
    progress = record["progress"]
    save_checkpoint(folder, progress["update"], run.model, optimiser, {}, progress, keep=1)
    write_record(folder, record | {"finished": True})
