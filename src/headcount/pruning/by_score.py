"""Score-based pruning: heads that a measure ranks low are masked in steps (Sec. 4 gives scores)."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from headcount.errors import Notice
from headcount.heads import Head
from headcount.progress import Progress
from headcount.pruning.selection import Quotas, Request, Selection
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measures import LRP, MEASURES
from headcount.ranking.rank import Provenance, random_scores, rank, weights_hash

if TYPE_CHECKING:
    from headcount.data.corpus_folder import Corpus
    from headcount.distribution import Workers
    from headcount.pruning.settings import PruneSettings
    from headcount.run import Run

SENTENCES = 300
"""Dev sentences that scores are measured on."""


class ScoredHeads(Selection):
    """Keeps `budgets[i]` heads of each group `groups[i]`, those with the best scores (`Quotas`).

    Over `updates` updates the others are masked in `steps` equal steps, the lowest score first,
    so that the model can adapt in between.
    """

    def __init__(
        self,
        heads: Sequence[Head],
        device: torch.device,
        groups: Sequence[Sequence[int]],
        budgets: Sequence[int],
        *,
        scores: Mapping[Head, float],
        updates: int,
        steps: int,
    ) -> None:
        super().__init__(heads, device)
        self.updates, self.steps = updates, steps
        self.scores = torch.tensor([scores[head] for head in self.heads], dtype=torch.float64)
        self._keep(Quotas(self.heads, self.blocks, groups, budgets).best(self.scores))
        self._step = 0

    @classmethod
    def of(cls, request: Request) -> ScoredHeads:
        """The heads of a pruning by score."""
        assert request.scores is not None
        return cls(
            request.heads,
            request.device,
            request.groups,
            request.budgets,
            scores=request.scores,
            updates=request.updates,
            steps=request.settings.steps,
        )

    def _keep(self, is_open: Tensor) -> None:
        """Let these heads stay: `[heads]`, boolean."""
        self._open = is_open
        order = torch.sort(self.scores, stable=True).indices.tolist()
        self.closing = [i for i in order if not is_open[i]]
        """Indices of the heads to close, in the order in which they are closed."""

    def begin(self, update: int) -> None:
        """Move to the step of this update."""
        done = self.steps * (update - 1) // max(1, self.updates)
        self._step = min(self.steps, done + 1)

    def go_on_after(self, update: int) -> None:
        """Go back to the step of this update: a schedule has no other state."""
        self.begin(update)

    def gates(self) -> Tensor:
        """Zeros for the heads that are masked so far."""
        number = -(-len(self.closing) * self._step // self.steps)
        gates = torch.ones(len(self.heads), device=self.device)
        gates[self.closing[:number]] = 0.0
        return gates

    def is_open(self) -> Tensor:
        """The heads that stay in the end."""
        return self._open.to(self.device)

    def metrics(self) -> dict[str, float | list[float]]:
        """How many are there now: open, in a block that is open."""
        return {"open": int(self.there(self.gates()).sum())}


def seeded_scores(
    run: Run,
    settings: PruneSettings,
    corpus: Corpus,
    workers: Workers,
    progress: Progress,
) -> dict[Head, float]:
    """Random scores that follow the seed."""
    return random_scores(run.model.heads.heads(settings.sites), settings.seed)


def measured_scores(
    run: Run,
    settings: PruneSettings,
    corpus: Corpus,
    workers: Workers,
    progress: Progress,
) -> dict[Head, float]:
    """The scores of the measure, or of the column of the head table, that the settings name."""
    return scores_by(str(settings.by), run, settings.sites, corpus, workers, progress)


def scores_by(
    measure: str,
    run: Run,
    sites: Sequence[str],
    corpus: Corpus,
    workers: Workers,
    progress: Progress,
) -> dict[Head, float]:
    """A score for each head at the sites: larger means that it matters more.

    Scores that an analysis has left in the run's head table are used, of any column of numbers;
    measures that are missing there, or that were measured with other weights, are measured on
    sentences of the corpus's dev set. A head without a score comes last.
    """
    heads = run.model.heads.heads(sites)
    column = known_scores(run, measure, sites)
    if column is None:
        source, target = (corpus.path("dev", side) for side in ("source", "target"))
        reference = target if run.config.model.decoder_layers else None
        column = rank(
            run,
            source,
            reference,
            by=(measure,),
            sites=sites,
            sentences=SENTENCES,
            progress=progress,
            workers=workers,
        )[measure]
    elif measure == LRP and workers.leader:
        _notice_options(run, sites)
    last = min(column.values(), default=0.0) - 1
    return {head: float(column.get(head, last)) for head in heads}


def _notice_options(run: Run, sites: Sequence[str]) -> None:
    """Say where the table's relevance was measured with other options than it would be now."""
    origins = (Provenance.load(run.analysis) or Provenance()).columns.get(LRP, {})
    now = asdict(LrpOptions())
    for site in sites:
        then = origins.get(site, {}).get("lrp", {})
        other = [f"{name} {then[name]}" for name in now if then.get(name, now[name]) != now[name]]
        if other:
            text = (
                f"Relevance at {site} is that of the run's head table, measured with"
                f" {', '.join(other)}; to measure it with the defaults, run `headcount rank` again."
            )
            warnings.warn(Notice(text), stacklevel=2)


def known_scores(run: Run, name: str, sites: Sequence[str]) -> dict[Head, float] | None:
    """A column of the head table; None where it is a measure that has yet to be measured."""
    column = numbers_of(run, sites).get(name, {})
    lacking = not set(run.model.heads.heads(sites)) <= set(column)
    return None if name in MEASURES and (lacking or _is_old(run, name, sites)) else column


def numbers_of(run: Run, sites: Sequence[str]) -> dict[str, dict[Head, float]]:
    """The columns of the head table that have numbers, and only those, for heads at these sites."""
    columns = {
        name: {head: value for head, value in column.items() if head.site in sites}
        for name, column in run.head_table().columns.items()
    }
    return {
        name: column
        for name, column in columns.items()
        if all(isinstance(value, float | int) for value in column.values())
    }


def _is_old(run: Run, measure: str, sites: Sequence[str]) -> bool:
    """Whether a measure in the head table belongs to weights that the run no longer has."""
    provenance = Provenance.load(run.analysis) or Provenance()
    hashes = provenance.weights(measure, sites)
    return bool(hashes) and hashes != {weights_hash(run)}
