"""A measure that is registered is known everywhere; a rule likewise."""

from __future__ import annotations

import math

import pytest
import torch

from headcount import rank
from headcount.cli.rank_display import grid_of
from headcount.heads import Head
from headcount.pruning.methods import METHODS
from headcount.ranking.lrp.rules import RULES, Rule
from headcount.ranking.measures import MEASURES, Measure, explain
from headcount.ranking.rank import Ranking

SOURCE = ["The cat sees the dog .", "A big dog", "it"]


def focus(batch):
    """Minus the entropy of attention, summed over the source tokens of each sentence."""
    real = batch.source != batch.model.pad
    sums = [
        -(torch.special.entr(batch.recording[(*place, "weights")]).sum(-1) * real[:, None]).sum(-1)
        for place in batch.attentions
    ]
    return torch.cat(sums, 1), real.sum(1, keepdim=True)


@pytest.fixture
def dummy():
    with MEASURES.adding(Measure("focus", "how sharp it looks", "focus (dummy)", focus)) as measure:
        yield measure


def test_a_new_measure_is_in_tables_pruning_and_grids(dummy, run_folder, capsys, monkeypatch):
    ranking = rank(run_folder, SOURCE, by="focus", sites="enc")
    assert all(-math.log(9) < value < 0 for value in ranking["focus"].values())
    assert len(ranking["focus"]) == len(ranking.heads)
    assert "focus" in rank(run_folder, SOURCE, sites="enc").columns  # among all there is text for
    method = METHODS["focus"]
    assert (method.help, method.label) == ("how sharp it looks", "by focus (dummy)")
    assert explain("focus") == "how sharp it looks"
    lines = [str(line) for line in grid_of(ranking, "focus", "enc").renderables]
    assert lines[0].startswith("Encoder self-attention: focus (dummy)")


def test_a_new_rule_ranks(run_folder):
    class Equal(Rule):
        name, help = "equal", "the same for all"

        def fractions(self, contributions, dim):
            present = (contributions != 0).to(contributions)
            return present / present.sum(dim, keepdim=True).clamp(min=1)

    with RULES.adding(Equal):
        ranking = rank(run_folder, SOURCE, by="lrp", sites="enc", rule="equal")
    assert ranking.about["lrp"]["rule"] == "equal"
    # Heads of one width share what arrives at their layer evenly.
    assert list(ranking["lrp"].values()) == pytest.approx([1 / 3] * 6)


def test_every_measure_has_one_function_and_says_what_it_is():
    for measure in MEASURES.values():
        functions = [measure.on_prefix, measure.on_loss, measure.on_corpus]
        assert sum(function is not None for function in functions) == 1
        assert measure.help
        assert measure.label


def test_numbers_of_a_grid_are_scaled_to_fit():
    table = Ranking([Head("enc", layer, i) for layer in range(2) for i in range(20)])
    table.add("ablation", {head: 0.0001 * head.index for head in table.heads[1:]})
    lines = [str(line) for line in grid_of(table, "ablation", "enc").renderables]
    assert "(numbers x 1e-3)" in lines[0]
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.startswith("layer 0")]) == 2  # in two blocks
    assert "  -   " in lines[2]  # a head without a value
    assert "1.90" in lines[-2]
