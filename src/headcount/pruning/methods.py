"""Every way to choose heads, under one name each: a method is one file and its line here.

Help texts, settings, study plans, tables and figures read `METHODS`. Each measure of heads
(`ranking`) is a method too, and so is any column of numbers in a run's head table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headcount.pruning.by_score import ScoredHeads, measured_scores, seeded_scores
from headcount.pruning.gates import HardConcreteGates
from headcount.pruning.selection import Request, Selection
from headcount.pruning.shape import ShapedHeads, shape_scores
from headcount.pruning.timed import TimedGates
from headcount.pruning.top_k import TopKGates
from headcount.ranking.measures import MEASURES
from headcount.registry import Registry

if TYPE_CHECKING:
    from headcount.data.corpus_folder import Corpus
    from headcount.distribution import Workers
    from headcount.heads import Head
    from headcount.progress import Progress
    from headcount.pruning.settings import PruneSettings
    from headcount.run import Run

    Scores = Callable[[Run, PruneSettings, Corpus, Workers, Progress], Mapping[Head, float]]

GATES, EXACT, TIMED, SHAPE, RANDOM = "gates", "exact", "timed", "shape", "random"

NEEDS = {
    "penalty": "a penalty: give --penalty P",
    "keep": "a number of heads to keep: give --keep N",
    "speedup": "a speed-up: give --speedup X",
}
"""What says how much stays, in words, and the option to give."""

ALIASES = {
    "hard concrete": GATES,
    "hard_concrete": GATES,
    "exact number": EXACT,
    "top_k": EXACT,
    "learned": EXACT,
}
"""Names from earlier versions, which recipes, runs and studies may still use."""


@dataclass(frozen=True)
class Method:
    """One way to choose heads.

    needs     what says how many heads stay: the price of an open head, their number, or how fast
              the model is to be
    make      its `Selection`, from what is asked for
    scores    where it ranks heads: how to get their scores; else training decides
    label     what tables and legends call it, and `colour` its colour in figures
    gate_learning_rate  of its parameters, unless a user says otherwise
    """

    name: str
    help: str
    label: str
    colour: str
    needs: Literal["penalty", "keep", "speedup"]
    make: Callable[[Request], Selection]
    scores: Scores | None = None
    gate_learning_rate: float = 0.1

    @property
    def learned(self) -> bool:
        """Whether training decides which heads stay."""
        return self.scores is None


MEASURE_COLOURS = ("#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#8c564b", "#1b7837", "#882255")


class Methods(Registry[Method]):
    """The methods that were added, and between the learned and the other ones all measures."""

    def __getitem__(self, name: str) -> Method:
        return self._entries[name] if name in self._entries else _by_measure(name)

    def __iter__(self) -> Iterator[str]:
        own = self._entries.values()
        yield from (method.name for method in own if method.learned)
        yield from (name for name in MEASURES if name not in self._entries)
        yield from (method.name for method in own if not method.learned)

    def __len__(self) -> int:
        return len(list(iter(self)))


METHODS = Methods(
    "pruning method",
    [
        Method(
            name=GATES,
            help="learned Hard Concrete gates; every open head pays the penalty (Sec. 6.1)",
            label="learned gates",
            colour="#0072b2",
            needs="penalty",
            make=HardConcreteGates.of,
            gate_learning_rate=0.05,
        ),
        Method(
            name=EXACT,
            help="learned scores, of which exactly the best K stay (differentiable top-k)",
            label="learned, exact number",
            colour="#d55e00",
            needs="keep",
            make=TopKGates.of,
        ),
        Method(
            name=TIMED,
            help="learned gates whose price is the time they cost, until the model is fast enough",
            label="learned, by time",
            colour="#f0a202",
            needs="speedup",
            make=TimedGates.of,
            gate_learning_rate=0.05,
        ),
        Method(
            name=SHAPE,
            help="the layers, heads and units per layer that keep the most weights in the time; the"
            " gradient measure says which ones stay",
            label="largest shape",
            colour="#44aa99",
            needs="speedup",
            make=ShapedHeads.of,
            scores=shape_scores,
        ),
        Method(
            name=RANDOM,
            help="heads drawn at random, by the seed: a baseline for all other methods",
            label="random",
            colour="#555555",
            needs="keep",
            make=ScoredHeads.of,
            scores=seeded_scores,
        ),
    ],
)


def canonical(name: str) -> str:
    """The name that a method has now."""
    return ALIASES.get(name, name)


def method_named(name: str) -> Method:
    """A method of the registry; any other name is that of a column of the head table."""
    name = canonical(name)
    return METHODS[name] if name in METHODS else _by_column(name)


def _by_measure(name: str) -> Method:
    """Pruning by a measure, with the measure's own words."""
    measure = MEASURES[name]
    place = list(MEASURES).index(name)
    return Method(
        name=name,
        help=measure.help,
        label=f"by {measure.label}",
        colour=MEASURE_COLOURS[place % len(MEASURE_COLOURS)],
        needs="keep",
        make=ScoredHeads.of,
        scores=measured_scores,
    )


def _by_column(name: str) -> Method:
    return Method(
        name=name,
        help=f"the heads with the largest {name} in the head table stay",
        label=f"by {name}",
        colour="#8c8c8c",
        needs="keep",
        make=ScoredHeads.of,
        scores=measured_scores,
    )
