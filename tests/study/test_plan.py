"""From a study's recipe to the commands that a person could run by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headcount.config import load_recipe
from headcount.errors import UserError
from headcount.run import load_run
from headcount.study.plan import make_plan
from headcount.study.publish import write_manifest
from headcount.study.recipe import load_study
from headcount.study.stages import Stage

STUDY = """
title: A test
pairs:
  - {name: en-fr, domain: talk, recipe: train.yaml, set: [training.updates=7]}
analysis: {rank_sentences: 5, role_sentences: 6, score_sentences: 7}
pruning:
  updates: 9
  encoder_penalties: [0.01]
  encoder_keep: [2]
  keep_by: [learned, lrp, random]
  all_penalties: [0.02]
  scratch_penalties: [0.02]
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "train.yaml").write_text("data: {corpus: builtin}\nmodel: {layers: 1}\n")
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path / "study.yaml"


def plan(recipe: Path) -> dict[str, Stage]:
    return {stage.name: stage for stage in make_plan(load_study(recipe), Path("out"))}


def test_every_need_comes_before(recipe: Path) -> None:
    stages = make_plan(load_study(recipe), Path("out"))
    seen: set[str] = set()
    for stage in stages:
        assert set(stage.needs) <= seen, stage.name
        assert stage.name not in seen
        seen.add(stage.name)


def test_all_models_are_made_and_scored(recipe: Path) -> None:
    stages = plan(recipe)
    models = {
        "full", "enc-penalty-0.01", "enc-keep-2-exact", "enc-keep-2-lrp", "enc-keep-2-random",
        "all-penalty-0.02", "scratch-penalty-0.02",
    }  # fmt: skip
    for model in models:
        assert f"en-fr/{model}" in stages
        assert f"en-fr/{model}/score" in stages
    ranked = {name.split("/")[1] for name in stages if name.endswith("/rank")}
    assert ranked == {"full", "enc-penalty-0.01", "all-penalty-0.02"}
    named = {name.split("/")[1] for name in stages if name.endswith("/roles")}
    assert named == ranked | {"enc-keep-2-exact"}
    assert "en-fr/full/rank" in stages["en-fr/enc-keep-2-lrp"].needs
    assert stages["en-fr/scratch-penalty-0.02"].needs == ("en-fr/all-penalty-0.02",)


def test_commands_are_those_of_the_command_line(recipe: Path) -> None:
    stages = plan(recipe)
    prune = " ".join(stages["en-fr/enc-penalty-0.01"].command)
    assert prune.startswith("headcount prune out/runs/en-fr-full --train out/corpora/en-fr")
    assert "--penalty 0.01" in prune
    assert "--sites enc " in prune
    twin = stages["en-fr/scratch-penalty-0.02"].command
    assert twin[twin.index("--heads-from") + 1] == "out/runs/en-fr-all-penalty-0.02"
    assert "training.updates=7" in stages["en-fr/full"].command


def test_a_twin_from_scratch_sees_as_much_text_as_training_and_pruning(recipe: Path) -> None:
    def updates() -> list[str]:
        command = plan(recipe)["en-fr/scratch-penalty-0.02"].command
        return [part for part in command if part.startswith("training.updates=")]

    assert updates() == ["training.updates=7", "training.updates=16"]  # the last one counts
    (recipe.parent / "train.yaml").write_text(
        "data: {corpus: builtin}\nmodel: {layers: 1}\ntraining: {batch_tokens: 200}\n"
    )
    recipe.write_text(STUDY.replace("updates: 9", "updates: 9\n  batch_tokens: 100"))
    assert updates()[-1] == "training.updates=12"


def test_prunings_of_a_study_can_have_a_teacher(recipe: Path) -> None:
    recipe.write_text(STUDY.replace("encoder_keep: [2]", "encoder_keep: [2]\n  distil: 0.5"))
    assert "--distil 0.5" in " ".join(plan(recipe)["en-fr/enc-keep-2-exact"].command)


def test_each_number_of_heads_may_have_ways_of_its_own(recipe: Path) -> None:
    recipe.write_text(
        STUDY.replace("encoder_keep: [2]", "encoder_keep: {1: [random], 2: [exact, lrp]}")
    )
    names = [name for name in plan(recipe) if re.fullmatch("en-fr/enc-keep-[^/]*", name)]
    assert names == ["en-fr/enc-keep-1-random", "en-fr/enc-keep-2-exact", "en-fr/enc-keep-2-lrp"]
    recipe.write_text(STUDY.replace("encoder_keep: [2]", "encoder_keep: {2: [learned, exact]}"))
    assert sum(name.endswith("/score") and "keep-2" in name for name in plan(recipe)) == 1


def test_some_prunings_have_more_seeds_than_others(recipe: Path) -> None:
    again = "seeds: 3\n  repeated: [enc-keep-2-exact, all-penalty-0.02]"
    recipe.write_text(f"{STUDY}  {again}\n")
    names = [name for name in plan(recipe) if "seed" in name and name.count("/") == 1]
    repeated = ("enc-keep-2-exact", "all-penalty-0.02", "scratch-penalty-0.02")  # with its twin
    assert names == [f"en-fr/{name}-seed{seed}" for seed in (2, 3) for name in repeated]
    recipe.write_text(f"{STUDY}  seeds: 2\n")
    assert "en-fr/scratch-penalty-0.02-seed2" in plan(recipe)
    for name in ("enc-keep-2-gradient", "enc-keep-2-exact-seed2", "scratch-penalty-0.02"):
        recipe.write_text(f"{STUDY}  seeds: 2\n  repeated: [{name}]\n")
        with pytest.raises(UserError, match=f"repeated names {name}, which is none of its"):
            plan(recipe)
    recipe.write_text(f"{STUDY}  repeated: [enc-keep-2-exact]\n")
    with pytest.raises(UserError, match="needs `seeds` of 2 or more"):
        load_study(recipe)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("{2: [gates]}", "encoder_keep.2.0 = 'gates': not a method that keeps a number"),
        ("{2: lrp}", "encoder_keep.2 = 'lrp': must be a list"),
        ("{-2: [lrp]}", "encoder_keep.-2 = -2: must be 0 or more"),
        ("{2: [lrp], 1: []}", "encoder_keep.1 = []: names no way to choose these heads"),
        ("[two]", "encoder_keep.two = 'two': must be a whole number"),
        ("[[2]]", "encoder_keep = [[2]]: must be a list of numbers, or numbers with a list"),
        ("2", "encoder_keep = 2: must be a list of numbers, or numbers with a list"),
    ],
)
def test_numbers_of_heads_that_are_none_are_refused(recipe: Path, value: str, says: str) -> None:
    recipe.write_text(STUDY.replace("encoder_keep: [2]", f"encoder_keep: {value}"))
    with pytest.raises(UserError, match=re.escape(says)):
        load_study(recipe)


def test_more_heads_than_the_model_has_are_refused_before_it_is_trained(
    recipe: Path, run_folder: Path
) -> None:
    """The recipe's model has one layer; a run that is given counts instead of it."""
    heads = load_run(run_folder).model.heads.count("enc")
    for run, most in (("", 8), (f", run: {run_folder}", heads)):
        for keep in (most, most + 1):
            text = STUDY.replace("encoder_keep: [2]", f"encoder_keep: {{1: [lrp], {keep}: [lrp]}}")
            recipe.write_text(text.replace("recipe: train.yaml", f"recipe: train.yaml{run}"))
            if keep == most:
                assert f"en-fr/enc-keep-{most}-lrp" in plan(recipe)
                continue
            with pytest.raises(UserError, match=f"'en-fr' has only {most} encoder heads"):
                plan(recipe)


def test_a_study_says_how_long_and_how_fast_its_prunings_train(recipe: Path) -> None:
    command = " ".join(plan(recipe)["en-fr/enc-keep-2-exact"].command)
    assert "--finetune" not in command
    assert "--learning-rate" not in command
    assert "--batch-tokens" not in command
    recipe.write_text(
        STUDY.replace(
            "  updates: 9",
            "  updates: 9\n  finetune: 6\n  learning_rate: 0.001\n  batch_tokens: 80\n"
            "  precision: bf16",
        )
    )
    command = " ".join(plan(recipe)["en-fr/enc-keep-2-exact"].command)
    assert "--updates 9 --seed 1 --finetune 6 --learning-rate 0.001" in command
    assert "--batch-tokens 80 --precision bf16" in command
    recipe.write_text(STUDY.replace("  updates: 9", "  updates: 9\n  finetune: 9"))
    with pytest.raises(UserError, match="none of the 9 updates to choose heads in"):
        load_study(recipe)


def test_controls_are_scored_and_not_analysed(recipe: Path) -> None:
    text = re.sub(r"encoder_penalties: \[.*?\]", "encoder_penalties: [0, 0.01]", STUDY)
    recipe.write_text(text)
    stages = plan(recipe)
    assert "en-fr/enc-penalty-0/score" in stages
    assert "en-fr/enc-penalty-0.01/roles" in stages
    assert not {"en-fr/enc-penalty-0/rank", "en-fr/enc-penalty-0/roles"} & stages.keys()
    timed = [Path(part).name for part in stages["bench"].command]
    assert "en-fr-enc-penalty-0.01" in timed
    assert "en-fr-enc-penalty-0" not in timed


def test_the_pairs_of_a_corpus_are_chosen_when_it_is_fetched(recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(STUDY.replace("[training.updates=7]", "[data.pairs=70]"))
    stages = plan(recipe)
    assert stages["en-fr/data"].command[-2:] == ("--pairs", "70")
    command = list(stages["en-fr/full"].command)
    settings = [command[i + 1] for i, part in enumerate(command) if part == "--set"]
    config = load_recipe(tmp_path / "train.yaml", settings)
    assert (str(config.data.folder), config.data.pairs) == ("out/corpora/en-fr", None)


def test_heads_are_ranked_on_other_text_than_models_are_scored_on(recipe: Path) -> None:
    """App. A.3: the dev set. Some prunings go by these ranks, and test BLEU is to know nothing."""
    stages = plan(recipe)
    ranked = [stage.command for stage in stages.values() if stage.kind == "rank"]
    assert ranked
    for command in ranked:
        assert command[command.index("--src") + 1] == "out/corpora/en-fr/dev.en"
        assert command[command.index("--ref") + 1] == "out/corpora/en-fr/dev.fr"
    roles = stages["en-fr/full/roles"].command
    assert roles[roles.index("--src") + 1] == "out/corpora/en-fr/test.en"


def test_packed_text_of_ones_own_is_found(recipe: Path, tmp_path: Path) -> None:
    data = tmp_path / "mine"
    data.mkdir()
    for name in ("dev.en.gz", "dev.fr", "test.en.gz"):
        (data / name).touch()
    own = f"{{corpus: null, folder: {data}}}"
    (tmp_path / "train.yaml").write_text(f"data: {own}\nmodel: {{layers: 1}}\n")
    stages = plan(recipe)
    rank, roles = (stages[f"en-fr/full/{name}"].command for name in ("rank", "roles"))
    assert rank[rank.index("--src") + 1] == str(data / "dev.en.gz")
    assert rank[rank.index("--ref") + 1] == str(data / "dev.fr")
    assert roles[roles.index("--src") + 1] == str(data / "test.en.gz")
    assert str(data / "test.en.gz") in stages["bench"].command


def test_sources_without_a_parser_have_roles_without_relations(recipe: Path) -> None:
    (recipe.with_name("train.yaml")).write_text("data: {corpus: builtin, source: fr, target: en}\n")
    roles = plan(recipe)["en-fr/full/roles"].command
    assert roles[-4:] == ("--relations", "none", "--sentences", "6")
    recipe.write_text(recipe.read_text().replace("domain: talk", "conllu: gold.conllu"))
    with pytest.raises(UserError, match=r"pair 'en-fr': .*gold\.conllu does not exist"):
        load_study(recipe)
    (recipe.with_name("gold.conllu")).touch()
    roles = plan(recipe)["en-fr/full/roles"].command
    assert roles[3:5] == ("--conllu", str(recipe.with_name("gold.conllu")))
    assert "--relations" not in roles


def test_a_run_is_no_place_for_a_study(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    with pytest.raises(UserError, match="holds a run"):
        write_manifest(load_study(recipe), tmp_path)
    assert not (tmp_path / "study.json").exists()


def test_bad_recipes_are_clear(recipe: Path) -> None:
    good = recipe.read_text()
    recipe.write_text(good.replace("encoder_keep", "encoder_keeps"))
    with pytest.raises(UserError, match="'encoder_keep'"):
        load_study(recipe)
    recipe.write_text(good.replace("scratch_penalties: [0.02]", "scratch_penalties: [0.3]"))
    with pytest.raises(UserError, match="twin"):
        load_study(recipe)
    recipe.write_text(good.replace("recipe: train.yaml", "recipe: none.yaml"))
    with pytest.raises(UserError, match=r"none\.yaml"):
        load_study(recipe)
    recipe.write_text(good.replace("- {name: en-fr", "- {name: ../up"))
    with pytest.raises(UserError, match="name"):
        load_study(recipe)
    for key in ("run", "conllu"):
        recipe.write_text(good.replace("domain: talk", f"{key}: NOWHERE"))
        with pytest.raises(UserError, match="NOWHERE"):
            load_study(recipe)
    recipe.write_text("title: nothing\n")
    with pytest.raises(UserError, match="pairs is missing"):
        load_study(recipe)


def test_the_two_kinds_of_recipes_are_told_apart(recipe: Path) -> None:
    with pytest.raises(UserError, match="headcount study"):
        load_recipe(recipe)
    with pytest.raises(UserError, match="headcount train"):
        load_study(recipe.with_name("train.yaml"))


@pytest.mark.parametrize(
    ("corpora", "reason"),
    [
        ("[builtin, builtin]", "listed twice"),
        ("[builtin, tatoeba-en-uk]", "tatoeba-en-uk"),
        ("[{name: builtin, share: 0.5}, {name: tatoeba-en-fr, share: 0.4}]", "do not add up"),
    ],
)
def test_a_study_of_corpora_that_cannot_be_mixed_leaves_nothing(
    recipe: Path, tmp_path: Path, corpora: str, reason: str
) -> None:
    recipe.with_name("train.yaml").write_text(f"data: {{corpus: {corpora}, target: fr}}\n")
    with pytest.raises(UserError, match=reason):
        make_plan(load_study(recipe), tmp_path / "out")
