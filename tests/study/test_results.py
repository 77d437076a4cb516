"""A study folder read back: everything, hardly anything, and what is wrong with it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from paper_like import FUNCTIONS
from planted import FULL, PlantedModel, closing_gates, heads, keep, plant

from headcount.errors import UserError
from headcount.heads import Head
from headcount.run import load_run
from headcount.study.cases import cases_of, first_seeds, functions_of, retained
from headcount.study.results import load_results
from headcount.study.score_model import ModelScores, score_model


def test_whole_study(paper_like):
    results = load_results(paper_like)
    assert results.title == "A planted study"
    assert [pair.name for pair in results.pairs] == ["en-ru-subs", "en-ru-wmt", "en-de", "en-fr"]
    full = results.model("en-ru-subs-full")
    assert full.bleu == pytest.approx(32.4)
    assert full.scores.bleu_interval == pytest.approx(0.6)
    assert full.scores.parameters == 100_000 + 144 * 1000
    assert sum(v for h, v in full.column("lrp").items() if str(h).startswith("enc.0")) == (
        pytest.approx(1)
    )
    assert results.pair(full).target == "ru"
    pruned = results.model("en-ru-subs-enc-10")
    assert retained(pruned, ("enc",)) == 10
    assert pruned.penalty == 0.02
    assert results.out == paper_like


def test_functions(paper_like):
    full = load_results(paper_like).model("en-ru-subs-full")
    both = functions_of(full, Head.parse("enc.1.4"))
    assert [f.label for f in both] == ["−1", "n→adj"]
    assert [str(f) for f in both] == ["positional -1", "amod noun → adj.m."]
    assert [f.relation for f in both] == ["positional -1", "amod"]
    assert functions_of(full, Head.parse("enc.0.0")) == []
    found = full.roles.heads[Head.parse("enc.2.0")]
    # The head's own scores can be asked for every function, whether it has it or not.
    for role in found.roles:
        assert found.score(role.kind, role.name) == role.value
    assert found.score(both[0].kind, both[0].name) == pytest.approx(0.15)
    rare = full.roles.heads[Head.parse("enc.0.5")]
    assert rare.score("rare words", "two rarest") == pytest.approx(0.83)


def test_cases(paper_like):
    cases = cases_of(load_results(paper_like))
    assert [c.label for c in cases] == ["EN-RU, OpenSubtitles", "EN-RU, WMT", "EN-DE", "EN-FR"]
    first = cases[0]
    assert [retained(m, ("enc",)) for m in first.encoder_learned] == [30, 17, 10, 4]
    assert [retained(m) for m in first.all_sites_learned] == [75, 58, 36, 26]
    for pruned, scratch in first.twins():
        assert scratch.heads == pruned.heads
        assert scratch.kind == "scratch"
    assert len(first.twins()) == 4
    assert len(first.pruned_at(("enc",))) == 12
    assert cases[2].pruned == ()


def test_seeds_of_one_setting_have_names(tmp_path):
    models = [PlantedModel("one", seed=1), PlantedModel("two", seed=2)]
    cases = cases_of(load_results(plant(tmp_path, models)))
    assert [case.label for case in cases] == ["EN-FR, seed 1", "EN-FR, seed 2"]
    assert [case.full.id for case in first_seeds(cases)] == ["one"]


def test_gates_over_training(tmp_path):
    kept = set(heads("enc.0.1", "enc.3.3"))
    model = PlantedModel(
        "p", "pruned", keep(["enc.0.1", "enc.3.3"]), "hard_concrete", ("enc",), "full",
        gates=closing_gates(FULL, ("enc",), kept),
    )  # fmt: skip
    gates = load_results(plant(tmp_path, [PlantedModel("full"), model])).model("p").gates
    assert gates is not None
    assert list(gates.heads) == FULL.heads(("enc",))
    assert gates.updates[-1] == 400
    last = dict(zip(gates.heads, gates.probabilities[-1], strict=True))
    assert all((p > 0.5) == (head in kept) for head, p in last.items())


def test_bare_model(tmp_path):
    """No scores, no analyses: still a study."""
    model = load_results(plant(tmp_path, [PlantedModel("full")])).model("full")
    assert model.bleu is None
    assert model.roles is None
    assert model.ranking is None
    assert model.gates is None
    assert model.column("lrp") == {}


def test_unfinished_study(tmp_path):
    """Models that have not been made yet are left out, with what comes from them."""
    everything = keep(["enc.0.0"])
    models = [
        PlantedModel("full"),
        PlantedModel("p", "pruned", everything, "hard_concrete", ("enc",), "full"),
        PlantedModel("q", "pruned", everything, "hard_concrete", ("enc",), "full"),
        PlantedModel("scratch-q", "scratch", everything, baseline="q"),
    ]
    study = plant(tmp_path, models)
    (study / "runs" / "q" / "heads.json").unlink()
    results = load_results(study)
    assert [model.id for model in results.models] == ["full", "p"]
    assert results.missing == ("q", "scratch-q")
    (study / "runs" / "full" / "config.yaml").unlink()
    with pytest.raises(UserError, match="none of its models"):
        load_results(study)


def test_one_run(run_folder):
    results = load_results(run_folder)
    assert not results.is_study
    assert [model.kind for model in results.models] == ["full"]
    assert results.out == run_folder / "analysis" / "report"
    assert [case.label for case in cases_of(results)] == ["EN-FR"]


def change(folder, **values):
    path = folder / "study.json"
    stored = json.loads(path.read_text())
    stored["models"][0] |= values
    path.write_text(json.dumps(stored))
    return folder


def test_bad_input(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_results(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"neither study\.json nor"):
        load_results(tmp_path / "empty")
    study = plant(tmp_path / "study", [PlantedModel("full")])
    with pytest.raises(UserError, match="unknown kind 'huge'"):
        load_results(change(study, kind="huge"))
    with pytest.raises(UserError, match="comes from 'gone'"):
        load_results(change(study, kind="pruned", baseline="gone"))
    with pytest.raises(UserError, match="does not list"):
        load_results(change(study, kind="full", domain="sport"))
    (study / "study.json").write_text('{"title": "x"}')
    with pytest.raises(UserError, match=r"study\.json does not hold what it should"):
        load_results(study)
    (study / "study.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        load_results(study)


def test_damaged_roles(tmp_path):
    study = plant(tmp_path, [PlantedModel("full", functions=FUNCTIONS)])
    path = study / "runs" / "full" / "analysis" / "roles.json"
    path.write_text(json.dumps({"heads": [{"head": "enc.0.0"}]}))
    with pytest.raises(UserError, match="headcount roles"):
        load_results(study)


def test_names_in_a_study_stay_inside_it(tmp_path):
    study = plant(tmp_path / "study", [PlantedModel("full")])
    for field in ("id", "run"):
        with pytest.raises(UserError, match="does not name anything inside"):
            load_results(change(study, **{field: "../../precious"}))
        study = plant(tmp_path / field, [PlantedModel("full")])


def test_a_model_that_comes_from_itself(tmp_path):
    study = plant(tmp_path / "study", [PlantedModel("full")])
    with pytest.raises(UserError, match="comes from itself"):
        load_results(change(study, kind="pruned", baseline="full"))


@pytest.mark.parametrize("stored", [{"bleu": 3}, {"bleu": {"value": 1.0}}, []])
def test_damaged_scores_are_named(tmp_path: Path, stored: object) -> None:
    path = tmp_path / "full.json"
    path.write_text(json.dumps(stored))
    with pytest.raises(UserError, match=r"full\.json does not hold what it should"):
        ModelScores.load(path)


def test_times_are_those_of_the_stages_that_finished(paper_like, tmp_path):
    folder = tmp_path / "study"
    shutil.copytree(paper_like, folder)
    assert load_results(folder).times == {}
    (folder / "stages").mkdir()
    for name, stamp in {"en-fr--full": {"seconds": 90.0}, "report": {"began": 1.0}}.items():
        (folder / "stages" / f"{name}.json").write_text(json.dumps(stamp))
    assert load_results(folder).times == {"en-fr/full": 90.0}


def test_all_models_are_scored_on_the_same_dev_set(run_folder, tmp_path):
    """Recipes say how many dev pairs a training looks at; a study's table must not depend on it."""
    tiny_run = load_run(run_folder)
    corpus = tmp_path / "corpus"
    source, target = tiny_run.config.data.source, tiny_run.config.data.target
    corpus.mkdir()
    for split in ("train", "dev", "test"):
        for side in (source, target):
            lines = "".join(f"{'abc' * (1 + line % 5)} cab {line}\n" for line in range(40))
            (corpus / f"{split}.{side}").write_text(lines)
    losses = []
    for count in (5, 40):
        run = tmp_path / f"run-{count}"
        shutil.copytree(tiny_run.folder, run)
        training = tiny_run.config.training.model_copy(update={"dev_sentences": count})
        config = tiny_run.config.model_copy(update={"training": training})
        (run / "config.yaml").write_text(config.to_yaml())
        losses.append(score_model(run, corpus, 2).dev_loss)
    assert losses[0] == losses[1]
