"""An imported run against `transformers`' own model: logits, translations, masked heads."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headcount.config import SearchConfig
from headcount.errors import UserError
from headcount.heads import Head
from headcount.interop.checking import make_sample, own_logits
from headcount.interop.families import FAMILIES
from headcount.interop.importing import import_run, parse_languages
from headcount.model.gating import masked
from headcount.run import Run, load_run
from headcount.translation import translate

CONFIGS: dict[str, dict[str, Any]] = {
    "usual": {},
    "other sizes a side": {
        "encoder_layers": 1,
        "decoder_layers": 3,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 8,
        "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 40,
        "activation_function": "relu",
    },
    "gelu, unscaled": {
        "d_model": 24,
        "activation_function": "gelu",
        "scale_embedding": False,
        "generation": {"renormalize_logits": True, "num_beams": 4, "length_penalty": 0.4},
    },
    "separate": {"separate": True, "activation_function": "silu"},
    "separate, untied": {"separate": True, "tie_word_embeddings": False},
    "untied": {
        "tie_word_embeddings": False,
        "generation": {
            "num_beams": 5,
            "length_penalty": 2.0,
            "min_length": 4,
            "early_stopping": True,
        },
    },
}


@pytest.fixture(scope="module", params=CONFIGS, ids=str)
def both(
    request: pytest.FixtureRequest,
    transformers: Any,
    make_checkpoint: Callable[..., Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Any, Any, Run]:
    """transformers' model and tokeniser, and the run that was made of their folder."""
    root = tmp_path_factory.mktemp("both")
    seed = list(CONFIGS).index(request.param)
    folder = make_checkpoint(root / "model", seed, **CONFIGS[request.param])
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    import_run(folder, root / "run")
    return model, tokenizer, load_run(root / "run")


@torch.no_grad()
def test_logits_are_equal(both: tuple[Any, Any, Run]) -> None:
    model, _, run = both
    sample = make_sample(run, seed=7)
    expected = FAMILIES["marian"].adapter.logits(model, sample, run.model.pad)
    assert expected.std() > 0.5
    logits = own_logits(run, sample)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)


@torch.no_grad()
def test_masked_heads_are_zeroed_columns(both: tuple[Any, Any, Run]) -> None:
    """A head without its part of `W^O` is a masked head, at each of the three sites."""
    model, _, run = both
    sample = make_sample(run, seed=8)
    last = run.config.model.decoder_layers - 1
    heads = [Head("enc", 0, 1), Head("dec", 0, 0), Head("cross", last, 1)]
    layers = {
        "enc": model.model.encoder.layers[0].self_attn,
        "dec": model.model.decoder.layers[0].self_attn,
        "cross": model.model.decoder.layers[last].encoder_attn,
    }
    for head in heads:
        weight = layers[head.site].out_proj.weight
        width = run.config.model.head_width_at(head.site)
        kept = weight.clone()
        weight[:, head.index * width : (head.index + 1) * width] = 0
        expected = FAMILIES["marian"].adapter.logits(model, sample, run.model.pad)
        weight.copy_(kept)
        with masked(run.model, [head]):
            logits = own_logits(run, sample)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        assert (logits - own_logits(run, sample)).abs().max() > 1e-2


@pytest.mark.parametrize("beam", [1, None], ids=["greedy", "its own beam"])
def test_translations_are_the_same(
    both: tuple[Any, Any, Run], english: list[str], beam: int | None
) -> None:
    model, tokenizer, run = both
    lines = english[:12]
    batch = tokenizer(lines, return_tensors="pt", padding=True)
    found = model.generate(**batch, **({} if beam is None else {"num_beams": beam}))
    expected = tokenizer.batch_decode(found, skip_special_tokens=True)
    assert translate(run, lines, beam=beam) == expected
    assert len(set(expected)) > 2


def test_settings_are_kept(marian_run: Run) -> None:
    pad = marian_run.model.pad
    assert marian_run.config.search == SearchConfig(
        beam=3, length_penalty=1.0, normalisation="length", max_ratio=0, max_extra=23,
        force_end=True, forbidden=(pad,),
    )  # fmt: skip
    assert marian_run.config.data.corpus is None
    assert (marian_run.config.data.source, marian_run.config.data.target) == ("en", "fr")
    assert marian_run.target_tokenizer.start == marian_run.target_tokenizer.pad == pad


def test_tied_inputs(transformers: Any, marian_folder: Path, tmp_path: Path) -> None:
    """Both embeddings one matrix, the output layer another."""
    model = transformers.MarianMTModel.from_pretrained(marian_folder, tie_word_embeddings=False)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.copy_(model.model.encoder.embed_tokens.weight)
        model.lm_head.weight.normal_()
    shutil.copytree(marian_folder, tmp_path / "model")
    model.save_pretrained(tmp_path / "model")
    imported = import_run(tmp_path / "model", tmp_path / "run")
    assert imported.run.config.model.tie == "inputs"
    ours = imported.run.model
    assert ours.source_embedding.table is ours.target_embedding.table
    assert imported.difference < 1e-4


def test_old_checkpoints(marian_folder: Path, tmp_path: Path) -> None:
    """A pickle of tensors, and the generation settings inside config.json."""
    from safetensors.torch import load_file

    folder = tmp_path / "model"
    shutil.copytree(marian_folder, folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    old = {"num_beams": 6, "max_length": 50, "bad_words_ids": [[config["pad_token_id"]]]}
    (folder / "config.json").write_text(json.dumps(config | old | {"normalize_before": False}))
    search = import_run(folder, tmp_path / "run").run.config.search
    assert (search.beam, search.max_extra) == (6, 49)
    assert search.forbidden == (config["pad_token_id"],)


class Attack:
    """A pickle that would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_that_is_a_program_is_not_run(marian_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(marian_folder, folder)
    (folder / "model.safetensors").unlink()
    torch.save({"weight": Attack(tmp_path / "ran")}, folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="more than tensors") as caught:
        import_run(folder, tmp_path / "run")
    assert "trust" not in str(caught.value), "no advice to run it all the same"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Attack(tmp_path / "ran"), protocol=2))
    with pytest.raises(UserError):
        import_run(folder, tmp_path / "run")
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("GPT2Config", "type 'gpt2'"),
        ("NllbMoeConfig", "mixture of experts"),
        ("SwitchTransformersConfig", "mixture of experts"),
        ("LEDConfig", "sparse attention"),
    ],
)
def test_another_architecture_is_one_line(
    transformers: Any, tmp_path: Path, kind: str, problem: str
) -> None:
    getattr(transformers, kind)().save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match=rf"{problem}.*Supported: MarianMT") as caught:
        import_run(tmp_path / "model", tmp_path / "run")
    assert "\n" not in str(caught.value)


Damage = Callable[[Path], Any]


def change(file: str, **values: Any) -> Damage:
    """Damage: other values in a JSON file of a checkpoint."""

    def make(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(content | values))

    return make


def write(file: str, text: str) -> Damage:
    """Damage: another content of a file."""
    return lambda folder: (folder / file).write_text(text)


def remove(file: str) -> Damage:
    """Damage: a file is missing."""
    return lambda folder: (folder / file).unlink()


def cut_short(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:2000])


def not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


DAMAGES: dict[str, tuple[Damage, str]] = {
    "cut short": (cut_short, "damaged"),
    "not a number": (not_a_number, "not all finite"),
    "no weights": (remove("model.safetensors"), "cannot be read"),
    "a layer too many": (change("config.json", encoder_layers=3), "do not fit"),
    "another width": (change("config.json", d_model=20), "do not fit"),
    "no config": (remove("config.json"), "no config.json"),
    "a list": (write("config.json", "[]"), "no config.json"),
    "layers in words": (change("config.json", encoder_layers="six"), "expected int"),
    "no layers": (change("config.json", encoder_layers=0), "encoder_layers = 0"),
    "no heads": (change("config.json", encoder_attention_heads=0), "attention_heads 0"),
    "no such token": (change("config.json", eos_token_id=99999), "eos_token_id 99999"),
    "strange activation": (change("config.json", activation_function="tanh"), "'tanh'"),
    "pre-norm": (change("config.json", normalize_before=True), "normalize_before"),
    "no languages": (remove("tokenizer_config.json"), "languages"),
    "settings in a list": (write("tokenizer_config.json", "[]"), "no names and values"),
    "vocabulary in a list": (write("vocab.json", "[1]"), "no names and values"),
    "numbers in words": (write("vocab.json", '{"<unk>": "one"}'), "the number 'one'"),
    "no beam": (change("generation_config.json", num_beams=0), "beam = 0"),
    "no list of bad words": (change("generation_config.json", bad_words_ids=[3]), "lists of"),
    "no such bad word": (change("generation_config.json", bad_words_ids=[[99999]]), "99999"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_models_are_one_line(marian_folder: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(marian_folder, folder)
    make, problem = DAMAGES[name]
    make(folder)
    with pytest.raises(UserError, match=re.escape(problem)) as caught:
        import_run(folder, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_the_hub_out_of_reach_is_one_line(
    transformers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="hub does not provide it") as caught:
        import_run("Helsinki-NLP/no-such-model", tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_does_not_replace_anything(marian_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        import_run(marian_folder, tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["file"]


def test_languages_on_the_command_line() -> None:
    assert parse_languages("en-fr") == ("en", "fr")
    with pytest.raises(UserError):
        parse_languages("en")
