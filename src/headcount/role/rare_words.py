"""Heads that point at the least frequent tokens of a sentence (Sec. 5.3).

Only sentences count whose least frequent token is not among the 500 most frequent ones of the
training data. Tokens are BPE tokens, EOS left out. Where several tokens of a sentence are equally
rare, each of them is the rarest; the two rarest are all tokens at most as frequent as the second
in the order of frequency, so that a rare token which stands twice fills both places.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.role.kind import FREQUENCIES, PointingRole, Scores, Setting, SiteBatch, Wanted

if TYPE_CHECKING:
    from headcount.role.head_roles import Criteria

FREQUENT = 500
# A head of this role sends at least half of its queries to one of the two rarest tokens, as the
# weakest of the paper's does, and twice as many as chance would: in a sentence of four tokens half
# of them is nothing special.
THRESHOLD = 0.50
RATIO = 2.0
LINES = 1000
"""Lines that are counted at a time."""

RAREST, TWO_RAREST = "rarest", "two rarest"


@dataclass(frozen=True)
class Frequencies:
    """How often each token stands in the training data, and which are the most frequent.

    counts: [vocabulary] int64; frequent: [vocabulary] bool.
    """

    counts: Tensor
    frequent: Tensor

    @classmethod
    def of(
        cls, counts: np.ndarray, special: Collection[int], frequent: int = FREQUENT
    ) -> Frequencies:
        """From counts by token id; special tokens are not part of a sentence and are not ranked."""
        counts = np.asarray(counts, dtype=np.int64)
        real = counts.copy()
        real[list(special)] = -1
        order = np.argsort(-real, kind="stable")[: min(frequent, len(counts) - len(special))]
        mask = np.zeros(len(counts), dtype=bool)
        mask[order] = True
        return cls(torch.from_numpy(counts), torch.from_numpy(mask))

    def to(self, device: torch.device | str) -> Frequencies:
        """The same on another device."""
        return Frequencies(self.counts.to(device), self.frequent.to(device))


def token_counts(tokenizer: Tokenizer, lines: Iterable[str]) -> np.ndarray:
    """How often each token stands in a text, `[vocabulary]` int64."""
    counts, remaining = np.zeros(tokenizer.size, dtype=np.int64), iter(lines)
    while chunk := list(islice(remaining, LINES)):
        counts += np.bincount(tokenizer.encode_flat(chunk)[0], minlength=tokenizer.size)
    if not counts.any():
        raise UserError("The text for --frequencies is empty.", "Give one like the training data.")
    return counts


def rare_tokens(ids: Tensor, real: Tensor, frequencies: Frequencies) -> Wanted:
    """The rarest tokens of each sentence: `ids` and `real` are `[batch, length]`."""
    most = torch.iinfo(torch.int64).max
    counts = frequencies.counts[ids].masked_fill(~real, most)  # [batch, length]
    smallest = counts.topk(min(2, counts.shape[1]), dim=1, largest=False).values
    rarest = (counts == smallest[:, :1]) & real
    two_rarest = (counts <= smallest[:, -1:]) & real
    counted = (rarest & ~frequencies.frequent[ids]).any(1, keepdim=True)  # [batch, 1]
    return Wanted(real & counted, {RAREST: rarest & counted, TWO_RAREST: two_rarest & counted})


def _want(batch: SiteBatch, setting: Setting) -> Wanted:
    assert setting.frequencies is not None
    return rare_tokens(batch.sentences.source, batch.keys, setting.frequencies)


class RareWords(PointingRole):
    """Heads that point at the rarest tokens, with the thresholds of `Criteria`."""

    text_colour = "black"

    def __init__(self) -> None:
        super().__init__(
            "rare words", "points at the least frequent tokens of a sentence", _want,
            names=(RAREST, TWO_RAREST), colour="#f2a33a", letter="R", needs=(FREQUENCIES,),
        )  # fmt: skip

    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """Whether enough queries go to one of the two rarest tokens."""
        share, chance = scores[TWO_RAREST].value, baselines[TWO_RAREST]
        if share is None:
            return []
        enough = share >= criteria.rare_threshold and share >= chance * criteria.rare_ratio
        return [TWO_RAREST] * enough

    def title(self, name: str) -> str:
        """The role has one name only."""
        return self.name

    def sentence(self, name: str) -> str:
        """What the head points at."""
        what = "the rarest token" if name == RAREST else "one of the two rarest tokens"
        return f"points at {what}"
