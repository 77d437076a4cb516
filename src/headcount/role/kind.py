"""What a role is made of: counts of where heads look, a baseline, a criterion, and its words.

A role is one file with a subclass of `RoleKind` and one of `RoleCounts`, and a line in `ROLES`
(`role/__init__.py`). A role whose heads point at certain tokens, such as the rarest, needs no
class of its own: a `PointingRole` is one function that tells which tokens are wanted, and a
threshold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from headcount.bootstrap import GROUPS, Bootstrap, Interval, divide

if TYPE_CHECKING:
    from headcount.data.tokenizer import Tokenizer
    from headcount.role.head_roles import Criteria
    from headcount.role.rare_words import Frequencies
    from headcount.role.relations import RelativePositions
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

    def baseline_hits(self, sample: Sequence[ReadySentence], name: int) -> list[int]:
        """In each sentence, how many instances a head that knows positions alone would find."""
        return [0] * len(sample)

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


FIXED_POINT = 2**20
"""Expected hits by chance are summed in integers of 2^-20, so that the order does not matter."""


@dataclass(frozen=True)
class Wanted:
    """Which tokens a head of the role looks at.

    queries: [batch, queries], the queries that count
    keys: for each name, the wanted tokens `[batch, keys]`
    """

    queries: Tensor
    keys: Mapping[str, Tensor]


Want = Callable[[SiteBatch, Setting], Wanted]


class PointingCounts(RoleCounts):
    """How often each head's argmax is a wanted token; the baseline is any token by chance."""

    def __init__(self, setting: Setting, names: tuple[str, ...], want: Want) -> None:
        self.names, self.setting, self.want = names, setting, want
        self.allocate(setting)
        self.expected = torch.zeros(len(names), dtype=torch.int64, device=setting.device)
        self.sentences = torch.zeros(1, dtype=torch.int64, device=setting.device)

    def begin(self, batch: SiteBatch) -> None:
        """Find the wanted tokens and count the queries."""
        self.wanted = self.want(batch, self.setting)
        queries = self.wanted.queries.sum(-1)  # [batch]
        self.totals.index_add_(0, batch.groups, queries[:, None].expand(-1, len(self.names)))
        self.sentences += (queries > 0).sum()
        tokens = batch.keys.sum(-1).clamp(min=1)
        for i, name in enumerate(self.names):
            number = self.wanted.keys[name].sum(-1)  # [batch]
            self.expected[i] += (queries * number * FIXED_POINT // tokens).sum()

    def add(self, heads: slice, weights: Tensor, argmax: Tensor, batch: SiteBatch) -> None:
        """Count one layer's heads."""
        counted = self.wanted.queries[:, None, :]
        for i, name in enumerate(self.names):
            keys = self.wanted.keys[name][:, None, :].expand(-1, argmax.shape[1], -1)
            hits = (keys.gather(2, argmax) & counted).sum(-1)  # [batch, heads]
            self.hits[:, heads, i].index_add_(0, batch.groups, hits)

    def baselines(self) -> np.ndarray:
        """The share of queries that would hit a wanted token by chance, `[names]`."""
        expected = self.expected.cpu().numpy() / FIXED_POINT
        return divide(expected, self.totals.sum(0).cpu().numpy())

    def facts(self) -> dict[str, int]:
        """How many sentences count, and how many queries they have."""
        return {"sentences": int(self.sentences), "queries": int(self.totals[:, 0].sum())}

    @property
    def tensors(self) -> list[Tensor]:
        """What several processes sum."""
        return [*super().tensors, self.expected, self.sentences]


class PointingRole(RoleKind):
    """Heads that send at least `threshold` of their queries to wanted tokens.

    And at least `ratio` times as many as chance would: in short sentences a large share is nothing
    special.
    """

    def __init__(
        self,
        name: str,
        help: str,
        want: Want,
        *,
        names: tuple[str, ...] = (),
        threshold: float = 0.5,
        ratio: float = 2.0,
        colour: str = "#888888",
        letter: str = "",
        needs: tuple[str, ...] = (),
        sites: tuple[str, ...] = ("enc",),
    ) -> None:
        """`names` are the kinds of tokens that `want` tells apart; the last one decides."""
        self.name, self.help, self.want = name, help, want
        self.names = names or (name,)
        self.threshold, self.ratio = threshold, ratio
        self.colour, self.letter = colour, letter or name[0].upper()
        self.needs, self.sites = needs, sites

    def counts(self, setting: Setting) -> PointingCounts:
        """Empty counts for one site."""
        return PointingCounts(setting, self.names, self.want)

    def met(
        self,
        scores: Scores,
        baselines: Mapping[str, float],
        instances: Mapping[str, int],
        criteria: Criteria,
    ) -> list[str]:
        """The role's own name where enough queries go to the wanted tokens."""
        deciding = self.names[-1]
        share, chance = scores[deciding].value, baselines[deciding]
        if share is None:
            return []
        return [deciding] * (share >= self.threshold and share >= chance * self.ratio)

    def sentence(self, name: str) -> str:
        """What a head of this role does."""
        return f"points at {self.name}"

    def label(self, name: str) -> str:
        """The role's first word."""
        return self.name.split()[0]

    def columns(self, scores: Scores) -> dict[str, Any]:
        """The share of each kind of wanted tokens."""
        return {f"{name.replace(' ', '_')}_share": share.value for name, share in scores.items()}
