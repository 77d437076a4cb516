"""Every measure of heads: a measure is one function and its line in `MEASURES`.

Help texts, the head table, pruning methods, study plans, tables and figures read the registry. In
every measure more means that the head matters more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from headcount.ranking.ablation import ablation, bleu_losses
from headcount.ranking.confidence import confidence
from headcount.ranking.evidence import LossBatch, PrefixBatch, Sums, WholeCorpus
from headcount.ranking.gradient import gradient
from headcount.ranking.lrp.propagate import KINDS
from headcount.registry import Registry


@dataclass(frozen=True)
class Measure:
    """One measure, by exactly one of three functions.

    help       one line: what a head's number is
    label      what tables and figures call it
    on_prefix  from a recorded forward pass of the translation: sums per sentence and head
    on_loss    from the loss of the references: likewise
    on_corpus  from all sentences together: one number per head, `[heads]`
    records    what `on_prefix` needs recorded: kinds of `model/recording.py`
    default    whether it is measured unless others are asked for; no for slow ones
    """

    name: str
    help: str
    label: str
    on_prefix: Callable[[PrefixBatch], Sums] | None = None
    on_loss: Callable[[LossBatch], Sums] | None = None
    on_corpus: Callable[[WholeCorpus], Tensor] | None = None
    records: frozenset[str] = frozenset({"weights"})
    default: bool = True

    @property
    def needs_references(self) -> bool:
        """Whether it needs reference translations."""
        return self.on_prefix is None


def _lrp(batch: PrefixBatch) -> Sums:
    assert batch.relevance is not None  # created whenever this measure is asked for
    return batch.relevance.add(batch.recording, [count + 1 for count in batch.tokens])


def _lrp_signed(batch: PrefixBatch) -> Sums:
    assert batch.relevance is not None
    return batch.relevance.add(batch.recording, [count + 1 for count in batch.tokens], signed=True)


def _confidence(batch: PrefixBatch) -> Sums:
    return confidence(
        batch.recording,
        batch.source,
        batch.tokens,
        batch.attentions,
        batch.source_eos,
        batch.frame,
    )


def _ablation(batch: LossBatch) -> Sums:
    tokens = batch.source, batch.target_input, batch.labels
    return ablation(batch.model, *tokens, batch.heads), batch.counts


def _gradient(batch: LossBatch) -> Sums:
    tokens = batch.source, batch.target_input, batch.labels
    return gradient(batch.model, *tokens, batch.attentions), batch.counts


LRP, LRP_SIGNED, BLEU, RANDOM = "lrp", "lrp_signed", "ablation_bleu", "random"

MEASURES = Registry(
    "measure",
    [
        Measure(
            LRP,
            "share of its layer's relevance for the predicted token",
            "relevance (LRP)",
            on_prefix=_lrp,
            records=KINDS,
        ),
        Measure(
            "confidence", "mean of its largest attention weight", "confidence",
            on_prefix=_confidence,
        ),
        Measure(
            "ablation", "rise of the loss without it, in nats per target token", "ablation (loss)",
            on_loss=_ablation,
        ),
        Measure(
            "gradient", "mean |d loss / d gate|, in nats per target token", "gradient",
            on_loss=_gradient,
        ),
        Measure(
            BLEU, "BLEU points lost without it; slow", "ablation (BLEU)",
            on_corpus=bleu_losses, default=False,
        ),
        Measure(
            LRP_SIGNED, "lrp by signed sums, the paper's reading", "signed relevance (LRP)",
            on_prefix=_lrp_signed, records=KINDS,
        ),
    ],
)  # fmt: skip

RANDOM_HELP = "a random number, the same for the same seed and head: a baseline for comparisons"


def explain(column: str) -> str:
    """One line on a column of the head table that a ranking adds."""
    if column == RANDOM:
        return RANDOM_HELP
    return MEASURES[column].help if column in MEASURES else "a column of the head table"
