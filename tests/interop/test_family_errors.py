"""Bad input of other families, and verbs that an encoder alone does not have: one line each."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import Maker
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from headcount.cli import app
from headcount.errors import UserError
from headcount.interop.importing import import_run
from headcount.run import load_run

NLLB = {"source_language": "eng_Latn", "target_language": "fra_Latn"}


@pytest.fixture(scope="module")
def maker(
    transformers: Any, english: list[str], french: list[str], sentencepiece_models: tuple
) -> Maker:
    return Maker(transformers, [*english[:400], *french[:400]], sentencepiece_models[0])


@pytest.fixture(scope="module")
def nllb(maker: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nllb") / "model"
    maker.make("m2m100", folder, seed=0)  # a seed that gives NLLB's tokeniser
    assert (folder / "tokenizer.json").exists()
    return folder


@pytest.fixture(scope="module")
def encoder(maker: Maker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    maker.make("bert", folder / "model", seed=1, head="Model")
    import_run(folder / "model", folder / "run")
    return folder / "run"


def shard(folder: Path) -> None:
    """The weights in two files, of which one is missing."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    kept = {
        name: tensor for name, tensor in weights.items() if files[name].startswith("model-00001")
    }
    save_file(kept, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change(**values: Any) -> Callable[[Path], Any]:
    def make(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(content | values))

    return make


def without_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


class Harm:
    """What a pickle must never get to do."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was run",))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weights": Harm()}, folder / "pytorch_model.bin")


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a shard is missing": (shard, r"weights of .* cannot be read .*Fetch all"),
    "no weights": (
        lambda folder: (folder / "model.safetensors").unlink(),
        r"weights of .* cannot be read .*Fetch all",
    ),
    "a pickle of more than tensors": (pickled, "hold more than tensors, which is never loaded"),
    "an unknown architecture": (change(model_type="gpt_neox"), "of the type 'gpt_neox'.*Supported"),
    "another width": (change(d_model=18), "do not fit"),
    "a smaller vocabulary": (change(vocab_size=50), "but the model has only 50"),
    "no heads": (change(encoder_attention_heads=0), "encoder_attention_heads 0"),
    "no tokeniser": (without_tokenizer, "tokeniser"),
    "a tokeniser of noise": (
        lambda folder: (folder / "tokenizer.json").write_text("{]"),
        "tokeniser",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_models_are_one_line(nllb: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(nllb, tmp_path / "model")
    damage, problem = DAMAGES[name]
    damage(tmp_path / "model")
    with pytest.raises(UserError, match=problem) as caught:
        import_run(tmp_path / "model", tmp_path / "run", **NLLB)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, r"knows \d+ languages.*--source-language"),
        ({"source_language": "eng_Latn"}, "--target-language"),
        ({**NLLB, "target_language": "fr"}, r"does not know the language 'fr'. Similar: fra_Latn"),
    ],
)
def test_languages(nllb: Path, tmp_path: Path, options: dict[str, str], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        import_run(nllb, tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_is_read_only_without_safetensors(nllb: Path, tmp_path: Path) -> None:
    shutil.copytree(nllb, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    other = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    torch.save(other, tmp_path / "model" / "pytorch_model.bin")
    run = import_run(tmp_path / "model", tmp_path / "run", **NLLB).run
    assert run.model.output_weight.any()
    (tmp_path / "model" / "model.safetensors").unlink()
    run = import_run(tmp_path / "model", tmp_path / "zeros", **NLLB).run
    assert not run.model.output_weight.any()


def test_languages_on_the_command_line(nllb: Path, tmp_path: Path) -> None:
    options = ["--source-language", "eng_Latn", "--target-language", "fra_Latn", "--quiet"]
    result = CliRunner().invoke(app, ["import", str(nllb), "--out", f"{tmp_path}/run", *options])
    assert result.exit_code == 0, result.output
    config = load_run(tmp_path / "run").config
    assert (config.data.source, config.data.target) == ("eng_Latn", "fra_Latn")
    assert len(config.model.first_tokens) == 1


def test_formats_are_in_the_help() -> None:
    result = CliRunner().invoke(app, ["export", "--help"], env={"COLUMNS": "200"})
    for name in ("ctranslate2", "transformers", "onnx"):
        assert f"{name}:" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["translate", "RUN", "--input", "TEXT", "--output", "OUT"],
        ["score", "RUN", "--src", "TEXT", "--ref", "TEXT"],
        ["rank", "RUN", "--src", "TEXT", "--by", "lrp"],
        ["rank", "RUN", "--src", "TEXT", "--ref", "TEXT", "--by", "gradient"],
        ["roles", "RUN", "--src", "TEXT", "--sites", "dec", "--relations", "none"],
        ["export", "RUN", "--to", "ctranslate2", "--out", "OUT"],
        ["export", "RUN", "--to", "onnx", "--out", "OUT"],
    ],
    ids=lambda arguments: " ".join(arguments[:1] + arguments[-2:]),
)
def test_an_encoder_has_no_decoder(
    encoder: Path, english: list[str], tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "text").write_text("\n".join(english[:4]) + "\n")
    places = {"RUN": str(encoder), "TEXT": f"{tmp_path}/text", "OUT": f"{tmp_path}/out"}
    given = [places.get(argument, argument) for argument in arguments]
    result = CliRunner().invoke(app, [*given, "--quiet"])
    assert isinstance(result.exception, UserError), result.output
    assert "encoder" in str(result.exception) or "no decoder" in str(result.exception)
    assert "\n" not in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_what_an_encoder_has(encoder: Path, english: list[str], tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(english[:6]) + "\n")
    call = CliRunner().invoke
    text = ["--src", f"{tmp_path}/text", "--quiet", "--json"]
    ranked = call(app, ["rank", str(encoder), "--by", "confidence", *text])
    assert ranked.exception is None, ranked.exception
    named = call(app, ["roles", str(encoder), "--relations", "none", *text])
    assert named.exception is None, named.exception
    run = load_run(encoder)
    assert set(run.head_table()["confidence"]) == set(run.model.head_list())


@pytest.mark.parametrize("value", ["x", None, -1, 10**20, 1.5])
def test_a_vocabulary_with_strange_numbers(maker: Maker, tmp_path: Path, value: object) -> None:
    folder = tmp_path / "model"
    seed = next(n for n in range(20) if random.Random(n).random() < 0.4)  # M2M100's tokeniser
    made = maker.make("m2m100", folder, seed)
    path = folder / "vocab.json"
    numbers = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(numbers | {list(numbers)[7]: value}), encoding="utf-8")
    with pytest.raises(UserError, match=r"vocab\.json|tokeniser|does not hold"):
        import_run(folder, tmp_path / "run", **made.options)
    assert not (tmp_path / "run").exists()
