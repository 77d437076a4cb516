"""What a role is made of: counts of where heads look, a baseline, a criterion, and its words.

A role is one file with a subclass of `RoleKind` and one of `RoleCounts`, and a line in `ROLES`
(`role/registry.py`). A role whose heads point at certain tokens needs no class of its own: see
`role/pointing.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import GROUPS, Bootstrap, Interval

if TYPE_CHECKING:
    from headcount.data.tokenizer import Tokenizer
    from headcount.role.criteria import Criteria
    from headcount.role.offsets import RelativePositions
    from headcount.role.rare_words import Frequencies
    from headcount.role.sentences import ReadySentence, SentenceBatch

PARSES, FREQUENCIES = "parses", "frequencies"
"""What a role may need besides attention."""

Scores = Mapping[str, Interval]
"""The scores of one head under one role, by name: `-1`, `nsubj v → s`, `two rarest`."""


@dataclass(frozen=True)
class Setting:
    """What a role needs to prepare its counts: how many heads and groups, and the data.

    groups: how many groups sentences are counted in; heads: how many heads the site has
    longest: the largest number of tokens of a sentence
    relations, offsets: the relations of the parses, and where their dependents stand
    frequencies: of the tokens in the training data, where known; tokenizer: the source's
    """

    longest: int
    site: str = "enc"
    groups: int = GROUPS
    heads: int = 0
    relations: Sequence[str] = ()
    offsets: RelativePositions | None = None
    frequencies: Frequencies | None = None
    tokenizer: Tokenizer | None = None
    device: torch.device | str = "cpu"

    def provides(self, need: str) -> bool:
        """Whether the data have what a role needs."""
        return bool(self.relations) if need == PARSES else self.frequencies is not None


@dataclass(frozen=True)
class SiteBatch:
    """One batch as the attention of one site sees it.

    queries: [batch, queries], keys: [batch, keys], true for tokens; START, EOS and padding are none
    groups: [batch], the group that each sentence is counted in
    sentences: the source sentences, with their words and dependencies
    """

    queries: Tensor
    keys: Tensor
    groups: Tensor
    sentences: SentenceBatch


class RoleCounts(ABC):
    """How often each head does what the role is about, by group of sentences.

    names: what is told apart, such as the offsets
    hits: [groups, heads, names], integers, so that any number of processes sum up to the same
    totals: [groups, names], how often each could have been hit
    """

    names: Sequence[str]
    hits: Tensor
    totals: Tensor

    def allocate(self, setting: Setting) -> None:
        """Counts of zero for `names`."""
        groups, device = setting.groups, setting.device
        shape = (groups, setting.heads, len(self.names))
        self.hits = torch.zeros(shape, dtype=torch.int64, device=device)
        self.totals = torch.zeros((groups, shape[-1]), dtype=torch.int64, device=device)

    @abstractmethod
    def begin(self, batch: SiteBatch) -> None:
        """Count what is the same for all heads, once per batch."""

    @abstractmethod
    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads.

        `weights` `[batch, heads, queries, keys]`; `argmax` `[batch, heads, queries]`, the key with
        the largest weight among the tokens.
        """

    @abstractmethod
    def baselines(self) -> np.ndarray:
        """What a head without the role would reach, `[names]`; NaN where nothing was counted."""

    def baseline_replicates(self, bootstrap: Bootstrap) -> np.ndarray | None:
        """The baseline in every replicate `[replicates, names]`, where it depends on them."""
        return None

    def queries(self, sentence: ReadySentence, name: int) -> list[int]:
        """The tokens of a sentence that the name is about; none where it is about all of them."""
        return []

    def more(self) -> dict[str, list[float]]:
        """Further measures by name, one value per head, that no role is decided by."""
        return {}

    def facts(self) -> dict[str, int]:
        """Numbers about the data as a whole."""
        return {}

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [self.hits, self.totals]


class RoleKind(ABC):
    """One role: how it is counted and decided, and how it is named and drawn.

    needs: what it needs besides attention; without it the role is not looked for
    colour, text_colour: of a cell in figures; letter: of a cell in the terminal
    """

    name: str
    help: str
    sites: tuple[str, ...] = ("enc",)
    needs: tuple[str, ...] = ()
    colour: str = "#888888"
    text_colour: str = "white"
    letter: str = "?"

    @abstractmethod
    def counts(self, setting: Setting) -> RoleCounts:
        """Empty counts for one site."""

    @abstractmethod
    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """The names under which a head with these scores has the role."""

    @abstractmethod
    def sentence(self, name: str) -> str:
        """What a head of this role does, to follow the head's name: `looks at the token before`."""

    @property
    def baseline_is(self) -> str:
        """What the baseline is, in a few words."""
        return "chance"

    def title(self, name: str) -> str:
        """The role as it is written in the head table: `positional -1`."""
        return name

    def label(self, name: str) -> str:
        """A few characters for a cell of a figure: `−1`, `v→s`, `rare`."""
        return name

    def columns(self, scores: Scores) -> dict[str, Any]:
        """One head's cells in the head table; None is an empty cell."""
        return {}
