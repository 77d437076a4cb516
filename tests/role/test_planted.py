"""Planted heads: attention that follows a plan, and the analysis must find exactly the plan.

Everything expected here is worked out from trees, texts and plans in plain loops.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from headcount.bootstrap import Bootstrap, groups_for
from headcount.data.builtin import generate
from headcount.data.conllu import Sentence, read_conllu
from headcount.data.tokenizer import Piece, Tokenizer
from headcount.heads import Head, HeadLayout
from headcount.role.counting import SiteCounts, SiteHeads, name_heads
from headcount.role.head_roles import BestHead, Criteria, HeadRoles
from headcount.role.kind import Setting
from headcount.role.positional import offset_name
from headcount.role.rare_words import Frequencies
from headcount.role.sentences import Preparation, SentenceBatch, batches_of
from headcount.role.syntactic import accuracies

TREEBANK = Path(__file__).parents[3] / "shared" / "treebank" / "en_ewt-ud-dev.conllu.gz"
RELATIONS = ("nsubj", "obj", "amod", "advmod")
FREQUENT = 60
SENTENCES = 220

# A pruned model: three layers, the middle one without heads.
LAYOUT = HeadLayout({"enc": ((0, 2, 5), (), (1, 3, 4))})
SUBJECT, OBJECT, PREVIOUS, ALMOST, RARE, ADJECTIVE = LAYOUT.heads(["enc"])


@dataclass
class Planted:
    """A sentence with everything a plan needs, found without the package's own analysis."""

    sentence: Sentence
    pieces: list[Piece]
    units: list[int] = field(default_factory=list)
    unit_of_word: list[int] = field(default_factory=list)
    plans: dict[Head, list[int]] = field(default_factory=dict)  # token to token, or unit to unit

    def __post_init__(self) -> None:
        """Piece by piece and word by word, who owns most of whose characters."""
        letters = [set(range(p.start, p.end)) for p in self.pieces]
        words = [set(range(w.start, w.end)) for w in self.sentence.words]
        owners = []
        for piece, own in zip(self.pieces, letters, strict=True):
            shared = [len(own & word) for word in words]
            following = [i for i, w in enumerate(self.sentence.words) if w.end > piece.start]
            owners.append(shared.index(max(shared)) if own else following[0])
        number = {owner: i for i, owner in enumerate(sorted(set(owners)))}
        self.units = [number[owner] for owner in owners]
        for w, word in enumerate(words):
            best = max(range(len(owners)), key=lambda p: (len(letters[p] & word), -p))
            self.unit_of_word.append(number[w if w in number else owners[best]])

    def arcs(self, relation: str) -> list[tuple[int, int, int]]:
        """Instances of a relation: unit of the head, of the dependent, and the offset in words."""
        found = []
        for word in self.sentence.words:
            if word.deprel == relation and word.head:
                head, dependent = self.unit_of_word[word.head - 1], self.unit_of_word[word.id - 1]
                if head != dependent:
                    found.append((head, dependent, word.id - word.head))
        return found

    def pairs(self, relation: str, from_head: bool) -> list[tuple[int, int]]:
        """(query, key) of every instance in one direction."""
        return [(h, d) if from_head else (d, h) for h, d, _ in self.arcs(relation)]


def plan_relation(
    data: list[Planted], head: Head, relation: str, from_head: bool, accuracy: float
) -> None:
    """Each query looks along the relation with this probability, else anywhere else."""
    rng = random.Random(str(head))
    for item in data:
        keys: dict[int, list[int]] = {}
        for query, key in item.pairs(relation, from_head):
            keys.setdefault(query, []).append(key)
        plan = []
        for unit in range(max(item.units) + 1):
            right = keys.get(unit, [])
            wrong = [u for u in range(max(item.units) + 1) if u not in right]
            looks = bool(right) and (rng.random() < accuracy or not wrong)
            plan.append(rng.choice(right if looks else wrong))
        item.plans[head] = plan


def plan_offset(data: list[Planted], head: Head, offset: int, share: float) -> float:
    """Exactly this share (rounded down) of the possible queries look at the offset."""
    rng = random.Random(str(head))
    possible = [
        (number, i)
        for number, item in enumerate(data)
        for i in range(len(item.pieces))
        if 0 <= i + offset < len(item.pieces)
    ]
    hits = set(rng.sample(possible, int(share * len(possible))))
    for number, item in enumerate(data):
        plan = []
        for i in range(len(item.pieces)):
            others = [j for j in range(len(item.pieces)) if j != i + offset]
            plan.append(i + offset if (number, i) in hits else rng.choice(others))
        item.plans[head] = plan
    return len(hits) / len(possible)


def plan_rare(data: list[Planted], head: Head, counts: Counter[int], share: float) -> None:
    """Most queries look at the rarest token."""
    rng = random.Random(str(head))
    for item in data:
        frequencies = [counts[piece.id] for piece in item.pieces]
        rarest = frequencies.index(min(frequencies))
        item.plans[head] = [
            rarest if rng.random() < share else rng.randrange(len(item.pieces)) for _ in item.pieces
        ]


def token_weights(item: Planted, plan: list[int]) -> torch.Tensor:
    """0.35 for the planned token, 0.4 for EOS, the rest for all others."""
    size = len(item.pieces)
    weights = torch.full((size + 1, size + 1), 0.25 / max(size - 1, 1))
    weights[:, size] = 0.4
    for i, target in enumerate(plan):
        weights[i, target] = 0.35
    return weights


def word_weights(item: Planted, plan: list[int]) -> torch.Tensor:
    """Attention whose word-level argmax is the plan, and whose pieces say something else.

    EOS gets most. A single piece of another word gets more than any piece of the planned word,
    and of a query of several pieces, one looks at the wrong word.
    """
    size = len(item.pieces)
    pieces = [[p for p in range(size) if item.units[p] == u] for u in range(max(item.units) + 1)]
    weights = torch.zeros(size + 1, size + 1)
    for unit, target in enumerate(plan):
        wrong = next((u for u in range(len(pieces)) if u != target), None)
        several = len(pieces[unit]) > 1
        for i, piece in enumerate(pieces[unit]):
            right_mass, wrong_mass = 0.4, 0.3
            if several:
                right_mass, wrong_mass = (0.1, 0.3) if i == 0 else (0.45, 0.08)
            weights[piece, pieces[target]] = right_mass / len(pieces[target])
            if wrong is not None:
                weights[piece, pieces[wrong][0]] = wrong_mass
        weights[pieces[unit], size] = 0.47
    return weights


@dataclass
class Found:
    """What the analysis made of the planted attention."""

    data: list[Planted]
    counts: SiteCounts
    halves: list[SiteCounts]
    heads: dict[Head, HeadRoles]
    best: dict[tuple[str, str], BestHead]
    frequencies: Counter[int]
    previous_share: float


@pytest.fixture(scope="module", params=["builtin", "ewt"])
def found(request: pytest.FixtureRequest) -> Found:
    if request.param == "builtin":
        sentences = [sentence for sentence, _ in generate(SENTENCES, seed=3)]
    elif TREEBANK.exists():
        sentences = list(islice(read_conllu(TREEBANK), SENTENCES))
    else:
        pytest.skip("the EWT treebank is not here: shared/treebank beside the repository")
    tokenizer = Tokenizer.train([sentence.text for sentence in sentences], 700)
    data = [Planted(sentence, tokenizer.pieces(sentence.text)) for sentence in sentences]
    frequencies = Counter(piece.id for item in data for piece in item.pieces)
    plan_relation(data, SUBJECT, "nsubj", from_head=True, accuracy=0.95)
    plan_relation(data, OBJECT, "obj", from_head=False, accuracy=0.9)
    plan_relation(data, ADJECTIVE, "amod", from_head=False, accuracy=0.3)
    previous_share = plan_offset(data, PREVIOUS, -1, 0.95)
    plan_offset(data, ALMOST, 1, 0.89)
    plan_rare(data, RARE, frequencies, 0.8)
    return analyse(data, tokenizer, frequencies, previous_share)


def analyse(
    data: list[Planted], tokenizer: Tokenizer, frequencies: Counter[int], previous_share: float
) -> Found:
    """The analysis as the verb does it, with planted attention in the model's place."""
    table = np.zeros(tokenizer.size, dtype=np.int64)
    table[list(frequencies)] = list(frequencies.values())
    special = {tokenizer.pad, tokenizer.start, tokenizer.eos}
    heads = SiteHeads.of(LAYOUT, "enc")
    preparation = Preparation(tokenizer, RELATIONS, 512)
    ready = [preparation.ready(item.sentence.text, item.sentence) for item in data]

    def empty() -> SiteCounts:
        frequencies = Frequencies.of(table, special, frequent=FREQUENT)
        setting = Setting(
            512, relations=RELATIONS, offsets=preparation.offsets, frequencies=frequencies
        )
        return SiteCounts(heads, setting)

    counts, halves = empty(), [empty(), empty()]
    chunks = list(batches_of(iter([r for r in ready if r is not None]), 900))
    for i, rows in enumerate([rows for chunk in chunks for rows in chunk]):
        batch = SentenceBatch.of(rows, pad=tokenizer.pad, eos=tokenizer.eos)
        longest = batch.source.shape[1]
        weights = {}
        for layer, indices in enumerate(LAYOUT.layers["enc"]):
            if not indices:
                continue
            weights[layer] = torch.zeros(len(rows), len(indices), longest, longest)
            for r, row in enumerate(rows):
                item = data[row.number]
                for h, index in enumerate(indices):
                    head = Head("enc", layer, index)
                    by_word = head in (SUBJECT, OBJECT, ADJECTIVE)
                    plant = word_weights if by_word else token_weights
                    matrix = plant(item, item.plans[head])
                    weights[layer][r, h, : len(matrix), : len(matrix)] = matrix
        counts.add(batch, weights)
        halves[i % 2].add(batch, weights)
    bootstrap = Bootstrap.seeded(groups_for(len(data)))
    heads_found, lines = name_heads(counts, bootstrap, Criteria(frequent=FREQUENT))
    named = {report.head: report for report in heads_found}
    best = {(line.kind, line.name): line for line in lines}
    return Found(data, counts, halves, named, best, frequencies, previous_share)


def baseline(found: Found, relation: str) -> tuple[float, int]:
    """The share of the most frequent offset, and the number of instances."""
    offsets = Counter(offset for item in found.data for _, _, offset in item.arcs(relation))
    return max(offsets.values()) / sum(offsets.values()), sum(offsets.values())


def planned_accuracy(found: Found, head: Head, relation: str, from_head: bool) -> float:
    pairs = [
        item.plans[head][query] == key
        for item in found.data
        for query, key in item.pairs(relation, from_head)
    ]
    return sum(pairs) / len(pairs)


def test_accuracies_of_planted_trees_are_exact(found: Found) -> None:
    """For the planted relation and, by the same plan, for every other one."""
    for head in (SUBJECT, OBJECT, ADJECTIVE):
        for relation in RELATIONS:
            for direction, from_head in (("head_to_dependent", True), ("dependent_to_head", False)):
                share = accuracies(found.heads[head].scores["syntactic"])[relation, direction]
                assert share.value == planned_accuracy(found, head, relation, from_head)
                assert share.low <= share.value <= share.high


def test_baselines_are_those_of_the_trees(found: Found) -> None:
    lines = [line for (kind, _), line in found.best.items() if kind == "syntactic"]
    assert len(lines) == 2 * len(RELATIONS)
    for line in lines:
        expected, instances = baseline(found, line.relation)
        assert (line.baseline.value, line.instances) == (expected, instances)
        assert line.baseline.low <= expected <= line.baseline.high


def test_the_best_head_of_a_relation_is_the_planted_one(found: Found) -> None:
    for head, relation, arrow, from_head in (
        (SUBJECT, "nsubj", "v → s", True),
        (OBJECT, "obj", "o → v", False),
    ):
        line = found.best["syntactic", f"{relation} {arrow}"]
        assert line.head == head
        expected = planned_accuracy(found, head, relation, from_head)
        assert line.score.value == expected
        assert line.margin.value == pytest.approx(expected - baseline(found, relation)[0])
        assert line.margin.low < line.margin.value < line.margin.high


def test_a_head_is_syntactic_where_it_beats_the_baseline_by_ten_points(found: Found) -> None:
    for head in (SUBJECT, OBJECT, ADJECTIVE):
        expected = set()
        for relation, ends in (
            ("nsubj", "v s"),
            ("obj", "v o"),
            ("amod", "noun adj.m."),
            ("advmod", "v adv.m."),
        ):
            first, second = ends.split()
            for from_head, arrow in ((True, f"{first} → {second}"), (False, f"{second} → {first}")):
                accuracy = planned_accuracy(found, head, relation, from_head)
                if accuracy >= baseline(found, relation)[0] + 0.10:
                    expected.add(f"{relation} {arrow}")
        named = {role.name for role in found.heads[head].roles if role.kind == "syntactic"}
        assert named == expected
    assert any(role.name == "nsubj v → s" for role in found.heads[SUBJECT].roles)
    assert not found.heads[ADJECTIVE].roles


def test_shares_of_offsets_are_exact(found: Found) -> None:
    for head in (PREVIOUS, ALMOST, RARE):
        for offset in range(-5, 6):
            looked = [
                item.plans[head][i] == i + offset
                for item in found.data
                for i in range(len(item.pieces))
                if 0 <= i + offset < len(item.pieces)
            ]
            share = found.heads[head].score("positional", offset_name(offset))
            assert share == sum(looked) / len(looked)


def test_ninety_per_cent_make_a_positional_head(found: Found) -> None:
    (role,) = found.heads[PREVIOUS].roles
    assert (role.kind, role.name) == ("positional", "-1")
    assert role.score.value == found.previous_share
    assert role.score.low < role.score.value < role.score.high
    by_chance = [1 / len(item.pieces) for item in found.data for _ in item.pieces[1:]]
    assert role.baseline == pytest.approx(sum(by_chance) / len(by_chance))
    assert role.instances == len(by_chance)
    assert not found.heads[ALMOST].roles  # 89 %


def test_confidence_leaves_eos_out_and_does_not_renormalise(found: Found) -> None:
    for head in (PREVIOUS, ALMOST, RARE):
        assert found.heads[head].confidence == pytest.approx(0.35, abs=1e-6)


def test_rare_words_are_exact(found: Found) -> None:
    order = sorted(found.frequencies, key=lambda token: (-found.frequencies[token], token))
    frequent = set(order[:FREQUENT])
    rarest_hits = two_hits = queries = candidates = 0
    for item in found.data:
        counts = [found.frequencies[piece.id] for piece in item.pieces]
        first, second = sorted(counts)[:2]
        tokens = [p.id for p, c in zip(item.pieces, counts, strict=True) if c == first]
        if all(token in frequent for token in tokens):
            continue
        for target in item.plans[RARE]:
            queries += 1
            rarest_hits += counts[target] == first
            two_hits += counts[target] <= second
        candidates += sum(count <= second for count in counts)
    assert queries
    report = found.heads[RARE]
    assert report.score("rare words", "rarest") == rarest_hits / queries
    assert report.score("rare words", "two rarest") == two_hits / queries
    best = found.best["rare words", "two rarest"]
    assert (best.head, best.baseline.value) == (RARE, candidates / queries)
    (role,) = report.roles
    assert role.kind == "rare words"
    assert role.baseline == candidates / queries
    assert role.instances == queries


def test_shares_of_the_work_add_up(found: Found) -> None:
    """Batches counted by two come to the very same integers as counted by one."""
    first, second = found.halves
    for whole, a, b in zip(found.counts.tensors, first.tensors, second.tensors, strict=True):
        assert not whole.is_floating_point()
        assert torch.equal(whole, a + b)
        assert a.any() or not whole.any()
