"""Run folders: what is written is read again, and damage is one clear line."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from headcount.config import Config, ModelConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import write_json
from headcount.heads import SITES, Head
from headcount.model.gating import remove_heads
from headcount.model.transformer import Transformer, full_layout
from headcount.run import (
    PRUNING,
    Run,
    all_finite,
    load_config,
    load_heads,
    load_run,
    open_run,
    regroup,
    save_weights,
)

Maker = Callable[..., Transformer]


@pytest.fixture(scope="module")
def tokenizer(run_folder: Path) -> Tokenizer:
    return load_run(run_folder).source_tokenizer


@pytest.fixture
def copy(run_folder: Path, tmp_path: Path) -> Path:
    """A run folder to spoil."""
    return Path(shutil.copytree(run_folder, tmp_path / "copy"))


@settings(max_examples=12)
@given(
    closed=st.sets(
        st.builds(
            Head,
            st.sampled_from(["enc", "dec", "cross"]),
            st.integers(0, 1),
            st.integers(0, 2),
        )
    ),
    tie=st.sampled_from(["none", "target", "inputs", "all"]),
    norm=st.sampled_from(["pre", "post"]),
    bias=st.booleans(),
)
@torch.no_grad()
def test_a_run_comes_back_as_it_was(
    make_model: Maker,
    tokenizer: Tokenizer,
    tmp_path_factory: pytest.TempPathFactory,
    closed: set[Head],
    tie: str,
    norm: str,
    bias: bool,
) -> None:
    """Any layout of heads, any tying of embeddings."""
    folder = tmp_path_factory.mktemp("run") / "saved"
    sizes = (tokenizer.size, tokenizer.size)
    full = make_model(vocabulary=sizes, double=False, tie=tie, norm=norm, output_bias=bias)
    model = remove_heads(full, closed)
    frequencies = np.arange(tokenizer.size)
    Run(folder, Config(model=model.config), model, tokenizer, tokenizer, frequencies).save()
    again = load_run(folder)
    assert again.model.heads == model.heads
    assert set(again.model.head_list()) == set(full.head_list()) - closed
    assert again.config == Config(model=model.config)
    assert not again.model.training
    assert again.source_frequencies is not None
    assert again.source_frequencies.tolist() == frequencies.tolist()
    source, target = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 7]])
    assert torch.equal(again.model(source, target), model(source, target))
    tied = again.model.output_weight is again.model.source_embedding.table.weight
    assert tied == (tie == "all")


def test_tied_matrices_are_stored_once(make_model: Maker, tmp_path: Path) -> None:
    model = make_model(vocabulary=(19, 19), tie="all", double=False)
    save_weights(model, tmp_path / "model.safetensors")
    stored = sum(tensor.numel() for tensor in load_file(tmp_path / "model.safetensors").values())
    assert stored == sum(parameter.numel() for parameter in model.parameters())


def test_half_precision_takes_half_the_space(run_folder: Path, copy: Path) -> None:
    save_weights(load_run(run_folder).model, copy / "model.safetensors", half=True)
    full, half = load_run(run_folder), load_run(copy)
    assert half.model.output_weight.dtype == torch.float32
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (copy, run_folder)]
    assert sizes[0] < 0.6 * sizes[1]
    torch.testing.assert_close(
        half.model.output_weight, full.model.output_weight, rtol=1e-3, atol=1e-3
    )


FILES = (
    "config.yaml",
    "heads.json",
    "model.safetensors",
    "tokenizer.src.json",
    "tokenizer.tgt.json",
    "frequencies.json",
)
DAMAGE = (b"", b"[]", b"3", b'"x"', b"\xff\xfe\x00", b'{"source": 3}', b"a: [", b"model: 3")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_one_clear_line(copy: Path, name: str, damage: bytes) -> None:
    (copy / name).write_bytes(damage)
    with pytest.raises(UserError) as raised:
        load_run(copy)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_truncated_weights(copy: Path, share: float) -> None:
    path = copy / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or cut short"):
        load_run(copy)


@pytest.mark.parametrize("name", FILES[:-1])
def test_missing_files(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        load_run(copy)


def test_weights_of_another_model(make_model: Maker, copy: Path) -> None:
    save_weights(make_model(double=False, ff_width=20), copy / "model.safetensors")
    with pytest.raises(UserError, match="does not fit its configuration"):
        load_run(copy)


@pytest.mark.parametrize(
    "layers",
    [
        {"enc": [[0]]},
        {"enc": [[0], [3]]},
        {"dec": [[0], [1], [2]]},
        {"cross": []},
        {"enc_ff": [[0], [99]]},
        {"dec_layers": [[0, 1, 2], [0, 1, 3]]},
        {"enc_layers": [[0, 1], [1]]},  # a block that is gone, but its heads are not
        {"enc_layers": [[0, 1]]},
    ],
)
def test_heads_that_the_model_does_not_have(copy: Path, layers: dict[str, list[list[int]]]) -> None:
    heads = json.loads((copy / "heads.json").read_text())
    (copy / "heads.json").write_text(json.dumps(heads | layers))
    with pytest.raises(UserError, match="do not fit"):
        load_run(copy)


def test_a_run_of_an_earlier_version_lists_heads_alone(copy: Path) -> None:
    heads = json.loads((copy / "heads.json").read_text())
    (copy / "heads.json").write_text(json.dumps({site: heads[site] for site in SITES}))
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"\n  ff_block: \d+", "", text))
    assert load_run(copy).model.heads == full_layout(ModelConfig(**yaml.safe_load(text)["model"]))


def test_units_and_blocks_of_a_pruned_run(run_folder: Path, copy: Path) -> None:
    run = regroup(load_run(run_folder), 3)
    gone = [Head("enc_ff", 0, 1), Head("enc_ff", 0, 5), Head("dec_layers", 1, 0)]
    run.model = remove_heads(run.model, gone)
    run.save(copy)
    again = load_run(copy)
    assert again.model.heads == run.model.heads
    assert again.model.encoder[0].feed_forward.expand.weight.shape == (16 - 3 - 1, 12)
    assert again.model.heads.layers["dec"] == ((0, 1, 2), ())
    tokens = torch.tensor([[5, 6, 3]]), torch.tensor([[2, 4]])
    torch.testing.assert_close(again.model(*tokens), run.model(*tokens))


def test_a_run_of_a_newer_version(copy: Path) -> None:
    text = (copy / "config.yaml").read_text().replace("version: 1", "version: 2")
    (copy / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"newer headcount \(format 2.*Upgrade"):
        load_run(copy)


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a run folder: it has no config\.yaml"):
        load_run(tmp_path)


def test_a_pruning_that_is_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / PRUNING).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"not finished.*--resume"):
        load_run(tmp_path)


def test_the_shipped_model_has_its_settings_by_name() -> None:
    assert load_config(Path("demo")).model.heads == 8


def test_open_run_takes_a_run_or_its_folder(run_folder: Path) -> None:
    run = load_run(run_folder)
    assert open_run(run) is run
    assert open_run(run_folder).folder == open_run(str(run_folder)).folder == run_folder


def test_heads_of_a_pruned_run(run_folder: Path, copy: Path) -> None:
    run = load_run(run_folder)
    run.model = remove_heads(run.model, [Head("enc", 0, 1)])
    run.save(copy)
    assert load_heads(copy, run.config.model).layers["enc"] == ((0, 2), (0, 1, 2))


def test_analyses_fill_one_table(copy: Path) -> None:
    run = load_run(copy)
    table = run.head_table()
    assert table.heads == run.model.head_list()
    table.add("confidence", {Head("enc", 0, 1): 0.5})
    table.save(run.analysis)
    assert load_run(copy).head_table()["confidence"] == {Head("enc", 0, 1): 0.5}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), -float("inf")])
def test_finite_numbers(dtype: torch.dtype, bad: float | None) -> None:
    tensor = torch.linspace(-1, 1, 7).to(dtype)
    if bad is not None:
        tensor[3] = bad
    assert all_finite(tensor) == bool(tensor.isfinite().all())
    assert all_finite(tensor[:0])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.index_fill(0, torch.tensor([0]), float("nan")), "infinite or not numbers"),
        (lambda t: t.index_fill(0, torch.tensor([1]), float("inf")), "infinite or not numbers"),
        (lambda t: t.to(torch.int64), "of type torch.int64, not floating point"),
        (lambda t: t[:-1], r"is \[.*\], not \["),
    ],
)
def test_every_tensor_is_checked(
    run_folder: Path, tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor], says: str
) -> None:
    """The message names the tensor."""
    shutil.copytree(run_folder, tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    tensors = load_file(path)
    name = sorted(tensors)[3]
    tensors[name] = change(tensors[name]).contiguous()
    save_file(tensors, path)
    with pytest.raises(UserError, match=f"{re.escape(name)}.*{says}"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize("counts", [[-1], [0.5], "many", [[1]]])
def test_frequencies_are_counts(run_folder: Path, tmp_path: Path, counts: object) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    write_json(tmp_path / "run" / "frequencies.json", {"source": counts})
    with pytest.raises(UserError, match=r"frequencies\.json does not hold what it should"):
        load_run(tmp_path / "run")
