"""Recipes: typed, validated, and helpful about what is wrong."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from headcount.config import REMOVED, Config, ModelConfig, load_recipe, parse_config
from headcount.errors import Notice, UserError


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


def test_defaults_are_the_papers() -> None:
    """Transformer base and the settings of App. B."""
    config = Config()
    model, training = config.model, config.training
    assert (model.encoder_layers, model.decoder_layers, model.heads) == (6, 6, 8)
    assert (model.width, model.ff_width, model.head_width) == (512, 2048, None)
    assert (training.adam_beta1, training.adam_beta2, training.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (training.label_smoothing, model.dropout) == (0.1, 0.1)
    assert (training.learning_rate_scale, training.warmup) == (4.0, 16000)
    assert training.batch_tokens == 16000


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    given = {
        "data": {"corpus": None, "folder": "some/where"},
        "model": {"layers": 3, "norm": "post", "head_width": 5},
        "training": {"minutes": 2.5},
    }
    config = parse_config(given, "test")
    assert load_recipe(write(tmp_path, config.to_yaml())) == config
    assert yaml.safe_load(config.to_yaml())["data"]["folder"] == "some/where"


def test_layers_sets_both_depths_unless_one_is_given() -> None:
    assert ModelConfig(layers=3).encoder_layers == ModelConfig(layers=3).decoder_layers == 3
    mixed = ModelConfig(layers=3, decoder_layers=1)
    assert (mixed.encoder_layers, mixed.decoder_layers) == (3, 1)


def test_overrides(tmp_path: Path) -> None:
    path = write(tmp_path, "model: {width: 32}\n")
    config = load_recipe(
        path, ["model.layers=2", "training.minutes=0.5", "data.corpus=null", "model.width=64"]
    )
    assert (config.model.encoder_layers, config.model.decoder_layers) == (2, 2)
    assert (config.model.width, config.training.minutes, config.data.corpus) == (64, 0.5, None)


@pytest.mark.parametrize(
    ("given", "key", "nearest"),
    [
        ({"modle": {}}, "modle", "'model'"),
        ({"model": {"droput": 0.1}}, "model.droput", "'dropout'"),
        ({"training": {"warm_up": 3}}, "training.warm_up", "'warmup'"),
        ({"data": {"zzzz": 3}}, "data.zzzz", "Known keys: corpus, folder"),
    ],
)
def test_unknown_keys_name_the_nearest(given: dict[str, Any], key: str, nearest: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_config(given, "recipe.yaml")
    assert f"recipe.yaml: unknown key '{key}'" in str(raised.value)
    assert nearest in str(raised.value)


def test_a_folder_is_read_whole(tmp_path: Path) -> None:
    recipe = write(tmp_path, "data:\n  pairs: 9\n")
    assert load_recipe(recipe).data.pairs == 9
    with pytest.raises(UserError, match=r"--pairs N"):
        load_recipe(recipe, ["data.folder=some/where"])


def test_a_corpus_and_a_folder_in_one_recipe_are_refused(tmp_path: Path) -> None:
    both = "data:\n  corpus: tatoeba-en-fr\n  folder: some/where\n"
    with pytest.raises(UserError, match="two different texts"):
        load_recipe(write(tmp_path, both))
    config = load_recipe(write(tmp_path, f"version: 1\n{both}"))  # a run's has every setting
    assert config.data.name == "where"


def test_a_folder_given_beside_the_corpus_of_a_recipe_is_told(tmp_path: Path) -> None:
    recipe = write(tmp_path, "data:\n  corpus: tatoeba-en-fr\n")
    with pytest.warns(Notice, match=r"data\.folder is read"):
        load_recipe(recipe, ["data.folder=some/where"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_recipe(recipe, ["data.corpus=null", "data.folder=some/where"])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": {"dropout": 1.0}}, "model.dropout = 1.0: must be below 1."),
        ({"model": {"heads": 0}}, "model.heads = 0: must be above 0."),
        ({"model": {"width": 10, "heads": 4}}, "not a multiple of 4 heads"),
        ({"model": {"width": 15, "heads": 3}}, "odd"),
        ({"model": {"norm": "middle"}}, "'pre' or 'post'"),
        ({"training": {"updates": "many"}}, "training.updates = 'many': must be a whole number."),
        (
            {"training": {"learning_rate_scale": -1}},
            "training.learning_rate_scale = -1: must be above 0.",
        ),
        ({"training": 3}, "training = 3: must be settings with values."),
        ({"version": 2}, "newer headcount"),
        ({"version": "x"}, "version = 'x'"),
    ],
)
def test_values_out_of_range_are_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_config(given, "recipe.yaml")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["a: [", "- 1\n- 2\n", "just words", "a: b: c"])
def test_a_recipe_must_be_a_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"recipe\.yaml") as raised:
        load_recipe(write(tmp_path, text))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "override", ["model.width", "=3", "model.width.deep=3", "model.width=[", "model.layers=no"]
)
def test_overrides_that_make_no_sense(tmp_path: Path, override: str) -> None:
    with pytest.raises(UserError) as raised:
        load_recipe(write(tmp_path, "model: {width: 32}\n"), [override])
    assert "\n" not in str(raised.value)


def test_a_missing_recipe(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        load_recipe(tmp_path / "nowhere.yaml")


def test_an_empty_recipe_is_the_default(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, "")) == Config()


def test_an_override_opens_an_empty_section(tmp_path: Path) -> None:
    config = load_recipe(write(tmp_path, "model:\n"), ["model.width=64"])
    assert config.model.width == 64


def test_settings_that_are_gone_are_read_at_their_defaults_only() -> None:
    """Runs of earlier versions have them in their `config.yaml`."""
    for (section, key), default in REMOVED.items():
        assert parse_config({section: {key: default}}, "config.yaml") == Config()
        with pytest.raises(UserError, match=rf"no setting {section}\.{key} any more \(0.125\)"):
            parse_config({section: {key: 0.125}}, "config.yaml")


@pytest.mark.parametrize(
    ("corpus", "reason"),
    [
        ("tatoeba-en-fr,debian-descriptions", r"must be a list: \[a, b\]"),
        (
            "[{name: tatoeba-en-fr, share: 1}, {name: builtin, share: 0}]",
            "the share of builtin is 0",
        ),
        ("[]", r"data.corpus = \[\]: is an empty list; name a corpus"),
        ("[{nam: builtin}]", "has a part with nam; each has a name"),
        ("[{name: builtin, part: 1}]", "has a part with name, part; each has a name"),
    ],
)
def test_mistakes_in_lists_of_corpora_are_said_plainly(
    tmp_path: Path, corpus: str, reason: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {}\n")
    with pytest.raises(UserError, match=reason):
        load_recipe(recipe, [f"data.corpus={corpus}"])
