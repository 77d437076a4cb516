"""Dependency relations under one name, whichever annotation scheme a parser follows (Sec. 5.2).

Names are those of Universal Dependencies 2. Older schemes have other names for the same relations:
Stanford dependencies and UD 1 (CoreNLP, the paper's parser), CLEAR (spaCy's English models), UD 2
before its later renamings. A relation whose old and new annotation are different *structures* is
not renamed: in CLEAR `pobj` hangs from its preposition, in UD `obl` and `nmod` hang from the verb
or noun, so that neither is the other. Two of these concern the paper's own relations:

- `neg` stays apart. UD 2 counts "not" and "n't" as `advmod`, older schemes do not.
- `nsubj:pass` stays apart from `nsubj`, as every scheme has it; so do all other subtypes.

`person_of` tells first, second and third person among the subjects (`nsubj`) that the accuracy is
measured on: the paper explains by it why verb-subject heads differ between domains (its footnote in
Sec. 5.2).

The positional baseline of a relation always looks at its most frequent offset: its accuracy is the
share of that offset. Seen from the other end every offset changes its sign, so that both directions
have the same baseline.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from headcount.bootstrap import divide
from headcount.errors import UserError
from headcount.registry import name_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUBJECT = "nsubj"
PERSONS = ("first", "second", "third")

_PRONOUNS = {
    **dict.fromkeys(("i", "we", "me", "us", "myself", "ourselves", "mine", "ours"), 1),
    **dict.fromkeys(("you", "ya", "y'all", "yall", "thou", "ye", "yourself", "yours"), 2),
}


def person_of(form: str, features: Mapping[str, str]) -> int:
    """1, 2 or 3: the parse's own `Person` where it has one, else by the English pronouns.

    Anything that is not a pronoun of the first or second person is third person.
    """
    person = features.get("Person", "")
    if person in ("1", "2", "3"):
        return int(person)
    return _PRONOUNS.get(form.lower(), 3)


# Older name -> name in UD 2.
SAME_AS = {
    # Stanford dependencies, UD 1 and CLEAR
    "dobj": "obj",
    "nsubjpass": "nsubj:pass",
    "csubjpass": "csubj:pass",
    "auxpass": "aux:pass",
    "nn": "compound",
    "prt": "compound:prt",
    "num": "nummod",
    "number": "compound",
    "poss": "nmod:poss",
    "possessive": "case",
    "predet": "det:predet",
    "preconj": "cc:preconj",
    "rcmod": "acl:relcl",
    "partmod": "acl",
    "infmod": "acl",
    "vmod": "acl",
    "complm": "mark",
    "mwe": "fixed",
    "name": "flat",
    "foreign": "flat:foreign",
    "tmod": "obl:tmod",
    # CLEAR only
    "relcl": "acl:relcl",
    "dative": "iobj",
    "npadvmod": "obl:npmod",
    "intj": "discourse",
    # spelt differently over the years
    "nmod:npmod": "obl:npmod",
    "nmod:tmod": "obl:tmod",
}

ROOT = "root"

# The paper's relations, and the names its Table 1 gives to (head, dependent).
PAPER_RELATIONS = ("nsubj", "obj", "amod", "advmod")
ENDS = {
    "nsubj": ("v", "s"),
    "nsubj:pass": ("v", "s"),
    "obj": ("v", "o"),
    "iobj": ("v", "o"),
    "amod": ("noun", "adj.m."),
    "advmod": ("v", "adv.m."),
}
# The same ends in words, for sentences.
ENDS_IN_WORDS = {
    "nsubj": ("verb", "subject"),
    "nsubj:pass": ("verb", "passive subject"),
    "obj": ("verb", "object"),
    "iobj": ("verb", "indirect object"),
    "amod": ("noun", "adjective"),
    "advmod": ("verb", "adverb"),
}
ALL, NONE = "all", "none"


class Direction(NamedTuple):
    """Which end of a relation looks for the other one."""

    name: str
    from_head: bool


DIRECTIONS = (Direction("head_to_dependent", True), Direction("dependent_to_head", False))


def canonical(label: str) -> str:
    """The UD 2 name of a relation label of any scheme."""
    lowered = label.lower()
    return SAME_AS.get(lowered, lowered)


def arrow(relation: str, direction: Direction) -> str:
    """A direction as Table 1 writes it: `v → s` is the verb looking for its subject."""
    head, dependent = ENDS.get(relation, ("head", "dep"))
    ends = (head, dependent) if direction.from_head else (dependent, head)
    return f"{ends[0]} → {ends[1]}"


def parse_relations(relations: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """`nsubj,dobj` as canonical relations; None stands for `all`, an empty tuple for `none`."""
    if relations is None:
        return None
    names = name_list(relations)
    if names in ((ALL,), (NONE,)):
        return None if names == (ALL,) else ()
    if not names and not isinstance(relations, str):
        return ()
    if not names or ALL in names or NONE in names:
        raise UserError(
            f"'{','.join(names)}' is not a list of relations.",
            "Write them as nsubj,obj,amod, or write all or none.",
        )
    return canonical_relations(names)


def canonical_relations(names: Iterable[str]) -> tuple[str, ...]:
    """The given relations under their UD 2 names, each once, in the order given."""
    relations = dict.fromkeys(canonical(name) for name in names)
    relations.pop(ROOT, None)  # the root's arc has one end only
    return tuple(relations)


SHOWN = 10  # offsets on either side of a plot


class RelativePositions:
    """Counts of offsets (dependent minus head, in words) of each relation, by group."""

    def __init__(self, groups: int, relations: int) -> None:
        self.groups, self.relations = groups, relations
        self._counts: list[dict[int, np.ndarray]] = [{} for _ in range(relations)]

    def add(self, group: int, relation: int, offset: int) -> None:
        """Count one instance."""
        counts = self._counts[relation]
        if offset not in counts:
            counts[offset] = np.zeros(self.groups, dtype=np.int32)
        counts[offset][group] += 1

    def table(self, relation: int) -> tuple[list[int], np.ndarray]:
        """The offsets of a relation in order, and their counts `[groups, offsets]`."""
        counts = self._counts[relation]
        offsets = sorted(counts)
        columns = [counts[offset] for offset in offsets]
        if not columns:
            return [], np.zeros((self.groups, 0), dtype=np.int64)
        return offsets, np.stack(columns, 1).astype(np.int64)

    def distribution(self, relation: int) -> dict[int, int]:
        """How often each offset occurs."""
        offsets, counts = self.table(relation)
        return dict(zip(offsets, counts.sum(0).tolist(), strict=True))


def most_frequent(distribution: Mapping[int, int]) -> int | None:
    """The most frequent offset, the nearest one among equals; None where there is none."""
    if not distribution:
        return None
    return max(distribution, key=lambda offset: (distribution[offset], -abs(offset), offset))


def baseline_shares(counts: np.ndarray) -> np.ndarray:
    """Accuracy of the positional baseline: `[..., offsets]` counts to `[...]` shares."""
    if counts.shape[-1] == 0:
        return np.full(counts.shape[:-1], np.nan)
    return divide(counts.max(-1), counts.sum(-1))


def distributions_csv(distributions: Mapping[str, Mapping[int, int]]) -> str:
    """All distributions as one table: relation, offset, count, share."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["relation", "offset", "count", "share"])
    for relation, counts in distributions.items():
        total = sum(counts.values())
        for offset in sorted(counts):
            writer.writerow([relation, offset, counts[offset], f"{counts[offset] / total:.6f}"])
    return buffer.getvalue()


def draw_distributions(
    distributions: Mapping[str, Mapping[int, int]], relations: Sequence[str] | None = None
) -> Figure:
    """The figure of Sec. 5.2: for each relation, the share of each offset of the dependent."""
    from matplotlib.figure import Figure

    chosen = [r for r in relations or distributions if distributions.get(r)]
    figure = Figure(figsize=(2.6 * max(len(chosen), 1), 2.4), layout="constrained")
    if not chosen:
        return figure
    plots = figure.subplots(1, len(chosen), sharey=True, squeeze=False)[0]
    shown = range(-SHOWN, SHOWN + 1)
    for plot, relation in zip(plots, chosen, strict=True):
        counts = distributions[relation]
        total = sum(counts.values())
        plot.bar(shown, [counts.get(offset, 0) / total for offset in shown], color="#4c72b0")
        plot.set_title(f"{relation} ({total})", fontsize=10)
        plot.set_xlabel("offset of the dependent")
    plots[0].set_ylabel("share")
    return figure
