"""The training loop: updates from accumulated micro-batches, evaluation, checkpoints, resuming.

Random numbers of a micro-batch come from a seed made of the run's seed, the update and the
micro-batch's number. So a resumed run repeats exactly what an uninterrupted one would have done,
and dropout is the same for any number of processes.
"""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headcount.config import TrainingConfig
from headcount.data.batches import Update, parts_of_update, updates
from headcount.data.shards import Shards
from headcount.data.tokenizer import Tokenizer
from headcount.distribution import Workers
from headcount.errors import Interrupted, Notice, UserError, stop_signals
from headcount.files import parsing
from headcount.model.transformer import Transformer
from headcount.run import load_tensors
from headcount.training.checkpoints import (
    OBJECTIVE,
    STATE,
    TrainingState,
    average_weights,
    list_checkpoints,
    load_checkpoint,
    newest_sound,
    save_checkpoint,
)
from headcount.training.metrics import FILE as METRICS
from headcount.training.metrics import Metrics, MetricsLog, Window
from headcount.training.objective import Objective

INTERRUPTED, ALL_DONE = "interrupted", "all updates done"
FLAT, TIME_IS_UP = "dev loss is flat", "time is up"

Moments = Mapping[Tensor, Any]
"""What Adam keeps of each parameter, as in `Adam.state`."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate, given as a function of the update (from 1)."""

    parameters: Sequence[nn.Parameter]
    learning_rate: Callable[[int], float]


class Trainer:
    """Trains a model on token shards, from the start or from a checkpoint."""

    def __init__(
        self,
        model: Transformer,
        config: TrainingConfig,
        shards: Shards,
        ids: Tokenizer,
        objective: Objective,
        groups: Sequence[ParameterGroup],
        folder: Path,
        evaluate: Callable[[], Metrics],
        workers: Workers,
        observe: Callable[[Metrics], None] = lambda line: None,
    ) -> None:
        self.config, self.shards, self.ids = config, shards, ids
        self.objective = objective
        self.folder, self.evaluate, self.workers = folder, evaluate, workers
        self.log = MetricsLog(folder / METRICS, enabled=workers.leader)
        self.observe = observe
        self.progress = TrainingState(processes=workers.world)
        self.take_model(model, groups)
        self._signal = 0  # the signal that asked us to stop
        self._sums = self._window()
        self._first_bad = torch.zeros((), dtype=torch.int64, device=workers.device)

    def take_model(
        self, model: Transformer, groups: Sequence[ParameterGroup], moments: Moments | None = None
    ) -> None:
        """Train this model from here on; `moments` are what Adam has kept of its parameters."""
        self.model, self.groups = model, groups
        self.optimiser = torch.optim.Adam(
            [{"params": list(group.parameters), "lr": 0.0} for group in groups],
            betas=(self.config.adam_beta1, self.config.adam_beta2),
            eps=self.config.adam_epsilon,
            fused=True,
        )
        self.optimiser.state.update(moments or {})

    def resume(self) -> bool:
        """Load the newest undamaged checkpoint; false if there is none."""
        path = self.newest_checkpoint()
        if path is not None:
            self.load_objective(path)
            self.load(path)
        return path is not None

    def newest_checkpoint(self) -> Path | None:
        """The newest undamaged checkpoint, the same one on all workers."""
        if self.workers.leader:
            newest_sound(self.folder)  # sets damaged ones aside
        self.workers.wait()
        checkpoints = list_checkpoints(self.folder)
        self._check_agreement(int(checkpoints[-1].name) if checkpoints else 0)
        return checkpoints[-1] if checkpoints else None

    def load(self, path: Path) -> None:
        """Go on from a checkpoint whose objective is back already."""
        self.progress = load_checkpoint(path, self.model, self.optimiser)
        self.progress.stopped = ""
        self._sums = self._window()
        if self.progress.window:
            with parsing(path / STATE, "Delete that checkpoint and resume from the one before."):
                self._sums.put_back(self.progress.window, self.workers)
        self.log.cut_after(self.progress.update)
        self._notice_idle()

    def load_objective(self, path: Path) -> None:
        """Put back what a checkpoint keeps of the objective."""
        with parsing(path / OBJECTIVE, "Delete that checkpoint and resume from the one before."):
            stored = load_tensors(path / OBJECTIVE)
            expected = {name: tensor.shape for name, tensor in self.objective.state().items()}
            if expected != {name: tensor.shape for name, tensor in stored.items()}:
                raise ValueError("its tensors are not those of this pruning")
            self.objective.load_state(stored)

    def run(self) -> TrainingState:
        """Train until the last update, the time limit or convergence.

        Told to stop by a signal it saves, and raises `Interrupted`.
        """
        self.model.train()
        with self._signals():
            for update in self._updates():
                if self._should_stop():
                    break
                began = time.perf_counter()
                self._train_update(update, self._sums)
                self.progress.seconds += time.perf_counter() - began
                number = self.progress.update
                if number % self.config.log_every == 0:
                    self._sums = self._report(self._sums)
                if number % self.config.evaluate_every == 0:
                    self._evaluate()
                if number % self.config.save_every == 0:
                    self.save()
            self.save()  # a second signal may end it; what was saved before stays
        if self.progress.stopped == INTERRUPTED:
            raise Interrupted(
                self._signal or signal.SIGTERM, f"Stopped at update {self.progress.update}."
            )
        self.progress.window = {}
        return self.progress

    def average(self, dev_loss: Callable[[], float]) -> int:
        """Replace the weights by the mean of the last checkpoints: as many as are best on dev.

        While a model still learns fast, older checkpoints drag it back, so every number up to
        `average_checkpoints` is tried. Returns how many were averaged.
        """
        paths = list_checkpoints(self.folder)[-max(1, self.config.average_checkpoints) :]
        losses = {}
        for count in range(1, len(paths) + 1):
            self._take(average_weights(paths[-count:]))
            losses[count] = dev_loss()
        best = min(losses, key=losses.__getitem__)
        self._take(average_weights(paths[-best:]))
        return best

    def _take(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])

    def save(self) -> None:
        """Write a checkpoint, unless a weight is no longer finite."""
        if self.progress.update == 0:
            return
        total = torch.stack([p.detach().abs().sum() for p in self.model.parameters()]).sum()
        if not bool(torch.isfinite(total)):
            self._diverged()
        self.progress.window = self._sums.to_json(self.workers)
        if self.workers.leader:
            save_checkpoint(
                self.folder,
                self.progress.update,
                self.model,
                self.optimiser,
                self.objective.state(),
                vars(self.progress),
                self.config.keep_checkpoints,
                self.config.save_every,
            )
        self.workers.wait()

    def _check_agreement(self, newest: int) -> None:
        """Workers that resumed from different updates would train different models as one."""
        mine = torch.tensor([newest, newest**2], dtype=torch.float64, device=self.workers.device)
        total, squares = self.workers.sum(mine).tolist()
        if squares * self.workers.world != total**2:
            raise UserError(
                f"Not all processes find the same newest checkpoint in {self.folder}.",
                "All machines must see the same --out: put it on a file system that they share.",
            )

    def _notice_idle(self) -> None:
        """Say if there are more processes than an update of this training has micro-batches."""
        config, world = self.config, self.workers.world
        began = self.progress.processes
        parts = parts_of_update(config.batch_tokens, config.device_tokens, began)
        if began and self.workers.leader and world > parts:
            warnings.warn(
                Notice(
                    f"Each update of this training is work for {parts} of its {world} processes;"
                    " the others will mostly be idle."
                ),
                stacklevel=2,
            )

    def _updates(self) -> Iterator[Update]:
        return updates(
            self.shards,
            batch_tokens=self.config.batch_tokens,
            device_tokens=self.config.device_tokens,
            seed=self.config.seed,
            pad=self.ids.pad,
            start=self.ids.start,
            eos=self.ids.eos,
            start_update=self.progress.update,
            rank=self.workers.rank,
            world=self.workers.world,
            join=self.config.join_pairs,
            planned_for=self.progress.processes,
        )

    def _train_update(self, update: Update, window: Window) -> None:
        """One optimiser step: gradients of the mean loss over all target tokens of the update."""
        number = update.number + 1
        self.optimiser.zero_grad(set_to_none=True)
        torch.manual_seed(_seed(self.config.seed, number, 0))
        self.objective.begin_update(number)
        for i, micro_batch in enumerate(update.micro_batches):
            global_number = self.workers.rank + i * self.workers.world
            torch.manual_seed(_seed(self.config.seed, number, 1 + global_number))
            batch = micro_batch.build().to(self.workers.device)
            window.real += (batch.source_tokens, batch.target_tokens)
            window.padded += (batch.source.numel(), batch.target_output.numel())
            with self._precision():
                losses = self.objective.losses(batch)
            (losses.smoothed / update.target_tokens).backward()
            window.smoothed += losses.smoothed.detach()
            window.nll += losses.nll
            bad = ~torch.isfinite(losses.smoothed.detach()) & (self._first_bad == 0)
            self._first_bad = torch.where(bad, number, self._first_bad)
        if self.workers.leader:
            penalty = self.objective.penalty()
            if penalty is not None:
                penalty.backward()
        parameters = [p for group in self.groups for p in group.parameters]
        self.workers.sum_gradients(parameters)
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(parameters, self.config.clip_norm)
        for group, settings in zip(self.groups, self.optimiser.param_groups, strict=True):
            settings["lr"] = group.learning_rate(number)
        self.optimiser.step()
        window.target_tokens += update.target_tokens
        window.source_tokens += update.source_tokens
        self.progress.update, self.progress.epoch = number, update.epoch
        self.progress.source_tokens += update.source_tokens

    def _window(self) -> Window:
        zeros = torch.zeros(2, dtype=torch.float64, device=self.workers.device)
        return Window(zeros[0].clone(), zeros[1].clone(), self.progress.seconds)

    def _report(self, window: Window) -> Window:
        sums = self.workers.sum(torch.stack([window.smoothed, window.nll])).tolist()
        if not np.isfinite(sums[0]):
            self._diverged()
        seconds = max(self.progress.seconds - window.began, 1e-9)
        waste = 1 - window.real / np.maximum(window.padded, 1)
        line: Metrics = {
            "kind": "train",
            "update": self.progress.update,
            "epoch": self.progress.epoch,
            "loss": sums[0] / window.target_tokens,
            "nll": sums[1] / window.target_tokens,
            "learning_rate": self.optimiser.param_groups[0]["lr"],
            "source_tokens": self.progress.source_tokens,
            "source_tokens_per_second": window.source_tokens / seconds,
            "source_padding": round(float(waste[0]), 4),
            "target_padding": round(float(waste[1]), 4),
            "seconds": self.progress.seconds,
            **self.objective.metrics(),
        }
        self.tell(line)
        return self._window()

    def _evaluate(self) -> None:
        self.model.eval()
        update, tokens = self.progress.update, self.progress.source_tokens
        line = {"kind": "dev", "update": update, "source_tokens": tokens, **self.evaluate()}
        self.model.train()
        if not np.isfinite(line["dev_loss"]):
            self._diverged()
        best = self.progress.best_loss
        if best is None or line["dev_loss"] < best:
            self.progress.best_loss = line["dev_loss"]
            self.progress.evaluations_since_best = 0
        else:
            self.progress.evaluations_since_best += 1
        self.tell({**line, "seconds": self.progress.seconds})

    def tell(self, line: Metrics) -> None:
        """Log a line and show it; one worker does so for all."""
        self.log.write(line)
        if self.workers.leader:
            self.observe(line)

    def _should_stop(self) -> bool:
        """Whether to stop before this update; the same answer on all workers."""
        config, progress = self.config, self.progress
        mine = [self._signal > 0, _time_is_up(progress, config)]  # not the same everywhere
        if self.workers.world > 1:
            mine = self._any(mine)
        progress.stopped = (
            _where_all_agree(progress, config)
            or (INTERRUPTED if mine[0] else "")
            or (TIME_IS_UP if mine[1] else "")
            or self.objective.finished()
            or ""
        )
        return bool(progress.stopped)

    def _any(self, mine: Sequence[bool]) -> list[bool]:
        """What is true on at least one worker.

        The flags stay in main memory: a GPU has nothing to wait for.
        """
        flags = torch.tensor(mine, dtype=torch.float32)
        return [count > 0 for count in self.workers.sum(flags).tolist()]

    def _diverged(self) -> None:
        checkpoints = list_checkpoints(self.folder)
        last = f"checkpoint {checkpoints[-1].name}" if checkpoints else "none was written yet"
        bad = int(self._first_bad) or self.progress.update
        rate = self.groups[0].learning_rate(bad)
        raise UserError(
            f"The loss is no longer a finite number since update {bad}"
            f" (learning rate {rate:.3g}; last good checkpoint: {last}).",
            "Lower training.learning_rate_scale, or set training.clip_norm=1, and --resume.",
        )

    def _precision(self) -> torch.autocast:
        wanted = self.config.precision == "bf16" or (
            self.config.precision == "auto" and self.workers.device.type == "cuda"
        )
        return torch.autocast(self.workers.device.type, torch.bfloat16, enabled=wanted)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal to stop finishes the update and saves; a later one ends at once.

        torchrun passes on the signal that its workers have just had from the terminal: what comes
        within two seconds counts as the same.
        """
        first: list[float] = []

        def stop(number: int, frame: FrameType | None) -> None:
            first.append(time.monotonic())
            if first[-1] - first[0] > 2:
                raise Interrupted(number, "Stopped before it was saved.")
            self._signal = number

        try:
            before = {number: signal.signal(number, stop) for number in stop_signals()}
        except ValueError:  # not the main thread, as in a notebook's worker
            yield
            return
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def why_over(progress: TrainingState, config: TrainingConfig) -> str:
    """Why a training that stands here has nothing left to do under these settings; or empty."""
    late = TIME_IS_UP if _time_is_up(progress, config) else ""
    return _where_all_agree(progress, config) or late


def _where_all_agree(progress: TrainingState, config: TrainingConfig) -> str:
    """A reason to stop that all workers see alike; or empty."""
    if progress.update >= config.updates:
        return ALL_DONE
    return FLAT if 0 < config.patience <= progress.evaluations_since_best else ""


def _time_is_up(progress: TrainingState, config: TrainingConfig) -> bool:
    return config.minutes is not None and progress.seconds >= 60 * config.minutes


def _seed(seed: int, update: int, micro_batch: int) -> int:
    """A seed of its own for every micro-batch."""
    return int(np.random.SeedSequence((seed, update, micro_batch)).generate_state(1)[0])
