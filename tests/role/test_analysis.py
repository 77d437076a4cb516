"""The whole analysis on a run: recording, all sites, several processes, what is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

import headcount
from headcount.data.conllu import read_conllu
from headcount.errors import UserError
from headcount.heads import Head
from headcount.model.attention import Attention
from headcount.model.gating import remove_heads
from headcount.role.analysis import roles as name_roles
from headcount.role.head_roles import Criteria
from headcount.role.positional import best_offset, offset_name
from headcount.role.result import Roles
from headcount.run import load_run
from two_processes import run_in_two_processes

if TYPE_CHECKING:
    from conftest import Place

SITES = ("enc", "dec", "cross")


def reported(result: Roles) -> str:
    """All that came out, to be compared."""
    return json.dumps(result.to_json(), sort_keys=True)


@pytest.fixture
def look_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every head of every attention look one place back, and most at the last key."""

    def weights(
        self: Attention, queries: torch.Tensor, keys: torch.Tensor, mask: object, causal: bool
    ) -> torch.Tensor:
        batch, heads, length, _ = queries.shape
        result = torch.zeros(batch, heads, length, keys.shape[2])
        place = (torch.arange(length) - 1).clamp(0, keys.shape[2] - 1)
        result[:, :, torch.arange(length), place] = 0.3
        if self.site == "enc" and isinstance(mask, torch.Tensor):
            eos = mask[:, 0, 0].sum(-1) - 1
            result[torch.arange(batch), :, :, eos] = 0.7
        return result

    monkeypatch.setattr(Attention, "weights", weights)


def test_the_models_own_attention_is_what_is_counted(place: Place, look_one_back: None) -> None:
    result = name_roles(
        place.folder / "run", conllu=place.conllu, reference=place.reference, sites=SITES
    )
    assert {head.site for head in result.heads} == set(SITES)
    for report in result.heads.values():
        if report.head.site == "cross":
            assert report.score("diagonal", "mean distance") is not None
            continue
        (role,) = [role for role in report.roles if role.kind == "positional"]
        assert (role.name, role.score.value) == ("-1", 1.0)
        if report.head.site == "enc":
            assert report.confidence == pytest.approx(0.3, abs=1e-6)


def test_cross_attention_is_measured_from_the_diagonal(place: Place, look_one_back: None) -> None:
    """Query t produces token t and looks at source token t - 1 here."""
    result = name_roles(
        place.folder / "run", conllu=place.conllu, reference=place.reference, sites=("cross",)
    )
    run = place.run
    offsets = []
    references = place.reference.read_text().splitlines()
    for sentence, translation in zip(place.sentences, references, strict=True):
        source = len(run.source_tokenizer.encode(sentence.text))
        target = len(run.target_tokenizer.encode(translation))
        for t in range(target):
            # Where all weights to tokens are zero, the first token is the argmax.
            place_of_argmax = t - 1 if 0 < t <= source else 0
            offsets.append(place_of_argmax - int((t + 0.5) * source / target))
    for report in result.heads.values():
        for offset in range(-5, 6):
            share = report.score("diagonal", offset_name(offset))
            assert share == offsets.count(offset) / len(offsets)
        assert report.score("diagonal", "mean offset") == sum(offsets) / len(offsets)
        distance = sum(map(abs, offsets)) / len(offsets)
        assert report.score("diagonal", "mean distance") == distance


def test_saved_roles_and_head_table(place: Place) -> None:
    folder = place.folder / "run"
    result = headcount.roles(folder, place.source, conllu=place.conllu, sites=SITES, save=True)
    stored = json.loads((folder / "analysis" / "roles.json").read_text())
    assert stored == json.loads(reported(result))
    assert len(stored["heads"]) == 12
    assert len(result.relations) == 8
    assert Roles.load(folder / "analysis" / "roles.json") == result
    rows = json.loads((folder / "analysis" / "head-table.json").read_text())
    first = next(row for row in rows if row["head"] == "enc.0.1")
    report = result.heads[Head("enc", 0, 1)]
    assert first["positional_offset"] == best_offset(report.scores["positional"])
    assert first["own_share"] == report.score("positional", "0")
    assert first["confidence"] == report.confidence
    accuracy = report.score("syntactic", "nsubj v → s")
    assert first["nsubj_head_to_dependent"] == accuracy
    assert "diagonal_share" not in first or first["diagonal_share"] is None
    assert (folder / "analysis" / "offsets.svg").read_text().startswith("<?xml")
    counts = (folder / "analysis" / "offsets.csv").read_text()
    subjects = sum(word.deprel == "nsubj" for s in place.sentences for word in s.words)
    lines = [line.split(",") for line in counts.splitlines() if line.startswith("nsubj,")]
    assert sum(int(line[2]) for line in lines) == subjects


def test_a_later_analysis_replaces_the_columns_of_its_sites_only(place: Place) -> None:
    folder = place.folder / "run"
    name_roles(folder, conllu=place.conllu, sites=("enc", "dec"), relations="nsubj,det", save=True)
    table = load_run(folder).head_table()
    before = {head: table["positional_share"][head] for head in table.heads if head.site == "dec"}
    table.add("confidence", dict.fromkeys(table.heads, 0.5))
    table.save(folder / "analysis")
    name_roles(folder, conllu=place.conllu, relations=["amod"], save=True)
    table = load_run(folder).head_table()
    assert "det_head_to_dependent" not in table.columns
    assert set(table["amod_head_to_dependent"]) == {h for h in table.heads if h.site == "enc"}
    assert {h: v for h, v in table["positional_share"].items() if h.site == "dec"} == before
    assert set(table["confidence"].values()) == {0.5}  # the ranking's own stays


def test_all_relations_and_none(place: Place) -> None:
    every = name_roles(place.folder / "run", conllu=place.conllu, relations=None, save=False)
    labels = {word.deprel for sentence in read_conllu(place.conllu) for word in sentence.words}
    assert {line.relation for line in every.relations} == labels - {"root"}
    assert every.criteria.least == 30
    for report in every.heads.values():
        assert all(r.instances >= 30 for r in report.roles if r.kind == "syntactic")
    none = name_roles(place.folder / "run", place.source, relations=[], save=False)
    assert not none.relations
    assert none.data["parses"] == "none"
    first = Head("enc", 0, 0)
    assert none.heads[first].scores["positional"] == every.heads[first].scores["positional"]


def test_batches_make_no_difference(place: Place) -> None:
    one = name_roles(place.folder / "run", conllu=place.conllu, batch_tokens=64, save=False)
    other = name_roles(place.folder / "run", conllu=place.conllu, batch_tokens=4000, save=False)
    for head, a in one.heads.items():
        b = other.heads[head]
        assert a.confidence == pytest.approx(b.confidence, abs=1e-6)
        own = b.score("positional", "0")
        assert a.score("positional", "0") == pytest.approx(own, abs=0.01)
    assert one.offsets == other.offsets


def test_pruned_models_and_runs_without_frequencies(place: Place) -> None:
    run = place.run
    whole = name_roles(run, conllu=place.conllu, criteria=Criteria(frequent=50), save=False)
    gone = [Head("enc", 0, 0), Head("enc", 1, 0), Head("enc", 1, 1)]
    run.model = remove_heads(run.model, gone)
    run.source_frequencies = None
    result = name_roles(run, conllu=place.conllu, sites=SITES, save=False)
    (only,) = [head for head in result.heads if head.site == "enc"]
    assert str(only) == "enc.0.1"
    # The first layer sees the same input whatever is gone beside it.
    same, left = whole.heads[only].scores, result.heads[only].scores
    assert left["positional"] == same["positional"]
    assert left["syntactic"] == same["syntactic"]
    assert "rare words" not in left
    assert same["rare words"]["rarest"].value is not None


def test_nothing_is_measured_on_sentences_the_model_cannot_read(place: Place) -> None:
    long = "the queen sees " * 40
    with pytest.raises(UserError, match="1 too long"):
        name_roles(place.folder / "run", [long], relations=[], save=False)
    result = name_roles(place.folder / "run", [long, "the queen"], relations=[], save=False)
    assert (result.data["sentences"], result.data["too_long"]) == (1, 1)


def test_sites_and_relations_as_the_verb_writes_them(place: Place) -> None:
    result = name_roles(
        place.run, conllu=place.conllu, sites="dec,enc", relations="dobj,det", save=False
    )
    assert [head.site for head in result.heads] == ["enc"] * 4 + ["dec"] * 4
    assert {line.relation for line in result.relations} == {"obj", "det"}
    with pytest.raises(UserError, match="encoder"):
        name_roles(place.run, conllu=place.conllu, sites=["encoder"], save=False)


def test_criteria_are_checked() -> None:
    for wrong in (
        {"threshold": 0},
        {"threshold": 1.2},
        {"margin": -0.1},
        {"frequent": -1},
        {"rare_threshold": float("nan")},
    ):
        with pytest.raises(UserError):
            Criteria(**wrong)


@pytest.mark.slow
def test_several_processes_come_to_the_very_same_result(place: Place) -> None:
    """Not only close: the same integers, so the same file."""
    stored = place.folder / "run" / "analysis" / "roles.json"
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    name_roles(
        place.folder / "run", place.source, conllu=place.conllu, sites=SITES, batch_tokens=100,
        save=True,
    )  # fmt: skip
    torch.set_num_threads(threads)
    alone = stored.read_text()
    stored.unlink()
    options = ["--src", place.source, "--conllu", place.conllu, "--json"]
    options += ["--sites", "enc,dec,cross", "--batch-tokens", "100"]
    printed = run_in_two_processes("-m", "headcount", "roles", place.folder / "run", *options)
    assert stored.read_text() == alone
    assert json.loads(printed) == json.loads(alone)  # one process speaks for both
