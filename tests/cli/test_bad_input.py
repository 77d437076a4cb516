"""Bad input, as a user gives it: one clear line, exit code 2, nothing half-written or lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headcount.cli import main
from headcount.config import parse_config
from headcount.data.tokenizer import Tokenizer
from headcount.model.transformer import Transformer
from headcount.run import Run

Fail = Callable[..., str]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Run a command that must fail as bad input; what it printed."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["headcount", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr()
        assert stopped.value.code == 2, printed
        lines = printed.err.strip().splitlines()
        assert lines[-1].startswith("headcount: "), printed.err
        assert "Traceback" not in printed.err
        return lines[-1]

    return run


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"{split}.en").write_text("the cat sees\nthe dog\n" * 4)
        (folder / f"{split}.fr").write_text("le chat voit\nle chien\n" * 4)
    return folder


@pytest.fixture
def recipe(tmp_path: Path, corpus: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"data: {{corpus: null, folder: {corpus}, source_vocabulary: 40, target_vocabulary: 40}}\n"
        "model: {layers: 1, heads: 2, width: 8, ff_width: 8}\n"
        "training: {updates: 2, batch_tokens: 30, device_tokens: 30, bleu_sentences: 0}\n"
    )
    return path


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A tiny untrained run."""
    config = parse_config({"model": {"layers": 1, "heads": 2, "width": 8, "ff_width": 8}}, "test")
    tokenizer = Tokenizer.train(["the cat sees the dog"], 40)
    model = Transformer(config.model, tokenizer.size, tokenizer.size)
    Run(tmp_path / "run", config, model, tokenizer, tokenizer).save()
    return tmp_path / "run"


def test_unknown_recipe_key_names_the_nearest(fails: Fail, recipe: Path, tmp_path: Path) -> None:
    line = fails("train", recipe, "--out", tmp_path / "r", "--set", "training.lable_smoothing=0.1")
    assert "training.lable_smoothing" in line
    assert "'label_smoothing'" in line
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "setting", ["model.dropout=1.5", "training.batch_tokens=0", "model.heads=3", "model.norm=mid"]
)
def test_value_out_of_range(fails: Fail, recipe: Path, tmp_path: Path, setting: str) -> None:
    line = fails("train", recipe, "--out", tmp_path / "r", "--set", setting)
    assert "model" in line or "training" in line
    assert not (tmp_path / "r").exists()


def test_missing_recipe(fails: Fail, tmp_path: Path) -> None:
    assert "does not exist" in fails("train", tmp_path / "no.yaml", "--out", tmp_path / "r")


def test_damaged_recipe(fails: Fail, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("model: [unclosed\n")
    assert "not valid YAML" in fails("train", tmp_path / "bad.yaml", "--out", tmp_path / "r")


@pytest.mark.parametrize("split", ["train", "dev"])
def test_different_line_counts(
    fails: Fail, recipe: Path, corpus: Path, tmp_path: Path, split: str
) -> None:
    with (corpus / f"{split}.fr").open("a") as handle:
        handle.write("une ligne de trop\n")
    line = fails("train", recipe, "--out", tmp_path / "r")
    assert f"{split}.en" in line
    assert f"{split}.fr" in line
    assert "9" in line
    assert "8" in line


def test_invalid_utf8_names_the_line(
    fails: Fail, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    with (corpus / "train.en").open("ab") as handle:
        handle.write(b"caf\xe9\n")
    (corpus / "train.fr").open("a").write("un\n")
    line = fails("train", recipe, "--out", tmp_path / "r")
    assert "line 9" in line
    assert "UTF-8" in line


def test_missing_corpus_file(fails: Fail, recipe: Path, corpus: Path, tmp_path: Path) -> None:
    (corpus / "dev.fr").unlink()
    assert "dev.fr" in fails("train", recipe, "--out", tmp_path / "r")


def test_held_out_text_without_a_usable_pair(
    fails: Fail, recipe: Path, corpus: Path, tmp_path: Path
) -> None:
    (corpus / "dev.en").write_text("")
    (corpus / "dev.fr").write_text("")
    assert "dev.en" in fails("train", recipe, "--out", tmp_path / "r")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_standard_output_on_a_full_disk(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the cat\n")
    command = [sys.executable, "-m", "headcount", "translate", str(run_folder)]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*command, "--input", str(tmp_path / "in")], stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 2
    assert done.stderr.decode().strip().splitlines()[-1].startswith("headcount: No space left")
    assert b"Traceback" not in done.stderr


def test_not_a_run(fails: Fail, tmp_path: Path) -> None:
    assert "not a run folder" in fails("translate", tmp_path)


def test_run_of_a_newer_version(fails: Fail, run_folder: Path) -> None:
    path = run_folder / "config.yaml"
    path.write_text(path.read_text().replace("version: 1", "version: 99"))
    assert "newer headcount" in fails("translate", run_folder)


def test_truncated_weights(fails: Fail, run_folder: Path) -> None:
    path = run_folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors" in fails("translate", run_folder)


def test_weights_of_another_model(fails: Fail, run_folder: Path) -> None:
    path = run_folder / "config.yaml"
    path.write_text(path.read_text().replace("ff_width: 8", "ff_width: 16"))
    assert "does not fit its configuration" in fails("translate", run_folder)


def test_score_with_different_line_counts(fails: Fail, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("un\n")
    line = fails("score", run_folder, "--src", tmp_path / "a", "--ref", tmp_path / "b")
    assert "2" in line
    assert "1" in line


def test_unknown_corpus(fails: Fail, tmp_path: Path) -> None:
    assert "tatoeba-en-fr" in fails("data", "tatoeba-en-fra", "--out", tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes; where it cannot be mounted the test is skipped."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_loses_nothing(fails: Fail, recipe: Path, small_disk: Path) -> None:
    out = small_disk / "run"
    line = fails(
        *("train", recipe, "--out", out, "--set", "model.ff_width=40000"),
        *("--set", "training.save_every=1"),
    )
    assert "No space left" in line
    left = [p for p in small_disk.rglob("*") if p.is_file()]
    assert not [p for p in left if p.name.endswith(".partial")]
    assert not (out / "model.safetensors").exists()


def test_loading_runs_no_code(run_folder: Path, tmp_path: Path) -> None:
    """A YAML tag that would run code in an unsafe loader is an error here."""
    from headcount.errors import UserError
    from headcount.run import load_run

    mark = tmp_path / "executed"
    path = run_folder / "config.yaml"
    path.write_text(f"!!python/object/apply:os.system ['touch {mark}']\n")
    with pytest.raises(UserError):
        load_run(run_folder)
    assert not mark.exists()
    assert torch.get_default_dtype() == torch.float32
