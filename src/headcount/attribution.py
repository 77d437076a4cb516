"""`headcount.attribute`: the relevance of every token, and how much of it is the source's.

Voita et al. (2021), *Analyzing the Source and Target Contributions to Predictions in Neural
Machine Translation*: relevance goes down from each step's logit to the tokens of the source and to
those already written; the share that the source gets is its contribution to that step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from headcount.data.batches import evaluation_batches, padded
from headcount.distribution import default_device
from headcount.errors import UserError
from headcount.files import atomic_path, write_csv, write_json, write_text
from headcount.loaded.relevance import source_contribution
from headcount.model.decoding import GREEDY
from headcount.progress import Progress, silent
from headcount.ranking.lrp.propagate import Propagation
from headcount.ranking.lrp.rules import LrpOptions
from headcount.ranking.measuring import Lines, Sentences, load_sentences
from headcount.run import Run, load_run
from headcount.translation import translate_tokens

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BATCH_TOKENS = 500
AGREEMENT = 1e-3
"""The largest relative difference allowed between sums over tokens and the audit's."""
BINS = 10
FEWEST = 5
"""A position is shown only if at least this many sentences reach it."""
RULE = "zplus"


@dataclass(frozen=True)
class SentenceRelevance:
    """One sentence: `source` `[steps, source tokens]`, `target` `[steps, prefix tokens]`."""

    source_tokens: list[str]
    target_tokens: list[str]
    steps: list[str]
    source: np.ndarray = field(repr=False)
    target: np.ndarray = field(repr=False)

    @property
    def contribution(self) -> np.ndarray:
        """The source's share at each step, `[steps]`."""
        return source_contribution(self.source, self.target)

    def to_json(self) -> dict[str, Any]:
        """As a line of `attribution.jsonl`."""
        return {
            "source_tokens": self.source_tokens,
            "target_tokens": self.target_tokens,
            "steps": self.steps,
            "source": _rounded(self.source),
            "target": _rounded(self.target),
            "source_contribution": _rounded(self.contribution),
        }


@dataclass(frozen=True)
class Position:
    """The mean source contribution at a position, with its 95 % interval over sentences."""

    position: int
    value: float
    low: float
    high: float
    sentences: int


@dataclass(frozen=True)
class Attribution:
    """Relevance of the tokens of many sentences.

    by_step      source contribution at the first, second, ... step of the generation
    by_tenth     the same by tenths of the translation, so that long and short ones are comparable
    difference   the largest difference between a sum over tokens and the audit's, as a share
    """

    sentences: list[SentenceRelevance] = field(repr=False)
    by_step: list[Position]
    by_tenth: list[Position]
    difference: float
    about: dict[str, Any]

    @property
    def mean(self) -> float:
        """The mean source contribution of all steps."""
        return float(np.nanmean(np.concatenate([s.contribution for s in self.sentences])))

    def to_json(self) -> dict[str, Any]:
        """All but the sentences, as JSON values."""
        return {
            **self.about,
            "source_contribution": round(self.mean, 6),
            "by_step": [vars(position) for position in self.by_step],
            "by_tenth": [vars(position) for position in self.by_tenth],
            "audit_difference": self.difference,
        }

    def plot(self) -> Figure:
        """Source contribution by position: by step, and by tenths of the translation."""
        from headcount.picture import Picture
        from headcount.study.figures.drawing import INK, PAGE, SERIES, open_frame, style

        with style():
            figure = Picture(figsize=(PAGE, 2.3), layout="constrained")
            for axes, rows, name in zip(
                figure.subplots(1, 2, sharey=True),
                (self.by_step, self.by_tenth),
                ("step of the generation", "tenth of the translation"),
                strict=True,
            ):
                positions = [row.position for row in rows]
                axes.fill_between(
                    positions,
                    [r.low for r in rows],
                    [r.high for r in rows],
                    color=SERIES[0],
                    alpha=0.2,
                )
                axes.plot(positions, [row.value for row in rows], color=SERIES[0], marker="o")
                axes.set_xlabel(name, color=INK)
                open_frame(axes)
            figure.axes[0].set_ylabel("source contribution")
        return figure

    def save(self, folder: Path) -> list[Path]:
        """Write `attribution.jsonl` (tokens), `.json`, `.csv` (positions) and `.svg`."""
        names = [folder / f"attribution.{ending}" for ending in ("jsonl", "json", "csv", "svg")]
        lines = (json.dumps(s.to_json(), ensure_ascii=False) + "\n" for s in self.sentences)
        write_text(names[0], "".join(lines))
        write_json(names[1], self.to_json())
        rows = [
            {"by": by, **vars(row)}
            for by, rows in (("step", self.by_step), ("tenth", self.by_tenth))
            for row in rows
        ]
        write_csv(names[2], rows, ["by", "position", "value", "low", "high", "sentences"])
        with atomic_path(names[3]) as partial:
            self.plot().savefig(partial, format="svg", metadata={"Date": None})
        return names


def attribute(
    run: Run | Path | str,
    source: Lines,
    reference: Lines | None = None,
    *,
    rule: str = RULE,
    sentences: int | None = None,
    save: Path | str | bool = False,
    progress: Progress = silent,
) -> Attribution:
    """Relevance of every token, and how much of each prediction comes from the source.

    source     a file with one sentence per line, or the sentences
    reference  their translations, for the decoder to read; without them, the model's own
    rule       of LRP; `zplus` is that of Voita et al. (2021), and gives no negative relevance
    sentences  how many to use, spread evenly over the data; all by default
    save       write into the run's analysis folder, or into this one
    """
    run = run if isinstance(run, Run) else load_run(run, default_device())
    if not run.config.model.decoder_layers:
        raise UserError(
            f"{run.folder} is an encoder alone: there is no decoder whose predictions could draw on"
            " the source or on what is already written.",
            "`headcount.load(run).relevance(text)` and `headcount explore` show its tokens.",
        )
    options = LrpOptions(rule=rule)
    ready = load_sentences(run, source, reference, sentences)
    targets = _targets(run, ready, progress)
    kept: list[SentenceRelevance | None] = [None] * len(ready)
    difference = 0.0
    for rows, relevances, apart in _batches(run, ready, targets, options, progress):
        difference = max(difference, apart)
        for row, relevance in zip(rows, relevances, strict=True):
            kept[row] = relevance
    result = _summary(
        [relevance for relevance in kept if relevance is not None],
        difference,
        {
            "run": str(run.folder),
            "sentences": len(ready),
            "skipped": ready.skipped,
            "decoder_reads": "own" if reference is None else "reference",
            "rule": rule,
        },
    )
    if save:
        result.save(run.analysis if save is True else Path(save))
    return result


def _targets(run: Run, ready: Sentences, progress: Progress) -> list[list[int]]:
    """What the decoder reads after START: references, or the model's own greedy translations."""
    if ready.references is not None:
        return ready.references
    best = translate_tokens(run, ready.sources, GREEDY, progress=progress)
    positions = run.model.config.max_positions
    limits = [GREEDY.limit(len(tokens) + 1, positions) for tokens in ready.sources]
    return [own[0].tokens[: limit - 1] for own, limit in zip(best, limits, strict=True)]


def _batches(
    run: Run,
    ready: Sentences,
    targets: Sequence[list[int]],
    options: LrpOptions,
    progress: Progress,
) -> Iterator[tuple[list[int], list[SentenceRelevance], float]]:
    """Sentence numbers, their relevance, and how far its sums are from the audit's."""
    propagation = Propagation(run.model, options)
    source, target = run.source_tokenizer, run.target_tokenizer
    device = run.model.output_weight.device
    names = source.tokens(), target.tokens()
    batches = evaluation_batches(ready.lengths, BATCH_TOKENS)
    for number, indices in enumerate(batches):
        progress("Propagating relevance", number, len(batches))
        rows = sorted(indices.tolist(), key=lambda row: -len(targets[row]))
        tokens = [[*ready.sources[row], source.eos] for row in rows]
        prefixes = [[target.start, *targets[row]] for row in rows]
        recording = propagation.record(
            padded(tokens, source.pad, device), padded(prefixes, target.pad, device)
        )
        result = propagation.propagate(recording, [len(p) for p in prefixes], tokens=True)
        assert result.tokens is not None
        by_source, by_prefix = (
            t.double().cpu() for t in (result.tokens.source, result.tokens.prefix)
        )
        apart = _check(result.audit, by_source, by_prefix)
        relevances = []
        for place, (own, prefix) in enumerate(zip(tokens, prefixes, strict=True)):
            steps = len(prefix)
            relevances.append(
                SentenceRelevance(
                    [names[0][token] for token in own],
                    [names[1][token] for token in prefix],
                    [names[1][token] for token in (*prefix[1:], target.eos)],
                    by_source[place, :steps, : len(own)].numpy(),
                    by_prefix[place, :steps, :steps].numpy(),
                )
            )
        yield rows, relevances, apart
    progress("Propagating relevance", len(batches), len(batches))


def _check(audit: Any, source: torch.Tensor, prefix: torch.Tensor) -> float:
    """How far sums over tokens are from what the audit saw arrive; too far is a bug."""
    apart = 0.0
    for station, tokens in (("enc_in", source), ("dec_in", prefix)):
        arrived = float(audit.sums["arrived", station])
        magnitude = max(float(audit.sums["magnitude", station]), 1e-12)
        apart = max(apart, abs(float(tokens.sum()) - arrived) / magnitude)
    if apart > AGREEMENT:
        raise RuntimeError(f"relevance of tokens does not add up to the audit ({apart:.1e})")
    return apart


def _summary(
    sentences: list[SentenceRelevance], difference: float, about: dict[str, Any]
) -> Attribution:
    shares = [sentence.contribution for sentence in sentences]
    by_step = _positions(shares, lambda share: np.arange(len(share)))
    by_tenth = _positions(shares, lambda share: np.arange(len(share)) * BINS // len(share))
    if not by_tenth:
        raise UserError("No sentence has relevance to share.", "Give other text.")
    return Attribution(sentences, by_step, by_tenth, difference, about)


def _positions(
    shares: Sequence[np.ndarray], place: Callable[[np.ndarray], np.ndarray]
) -> list[Position]:
    """Means by position over sentences: a sentence counts once at each position that it reaches."""
    values: dict[int, list[float]] = {}
    for share in shares:
        positions = place(share)
        for position in np.unique(positions):
            here = share[(positions == position) & ~np.isnan(share)]
            if here.size:
                values.setdefault(int(position), []).append(float(here.mean()))
    fewest = min(FEWEST, len(shares))
    rows = []
    for position in sorted(values):
        own = np.array(values[position])
        if len(own) < fewest:
            continue
        mean = float(own.mean())
        error = 1.96 * float(own.std(ddof=1)) / len(own) ** 0.5 if len(own) > 1 else 0.0
        low, high = max(0.0, mean - error), min(1.0, mean + error)
        rows.append(Position(position + 1, round(mean, 6), round(low, 6), round(high, 6), len(own)))
    return rows


def _rounded(values: np.ndarray) -> list[Any]:
    rounded: list[Any] = np.round(np.nan_to_num(values), 6).tolist()
    return rounded
