"""Bad input of pruning: one clear line, exit code 2, nothing made, the source run untouched."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headcount.cli import main
from headcount.errors import UserError
from headcount.model.gating import remove_heads
from headcount.pruning.process import check_corpus
from headcount.pruning.record import new_record, open_record, read_record
from headcount.pruning.settings import make_settings
from headcount.run import load_run

Fail = Callable[..., str]


@pytest.fixture
def fails(
    baseline: Path,
    corpus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Fail:
    """`headcount prune` with more arguments must fail as bad input; its one line."""

    def run(*more: object, run: Path = baseline, train: Path = corpus, verb: str = "prune") -> str:
        before = {p: p.stat().st_mtime_ns for p in baseline.rglob("*")}
        out = tmp_path / "out"
        there = out.exists()
        arguments = [verb, run, "--train", train, *more]
        arguments += [] if "--plan" in more else ["--out", out]
        monkeypatch.setattr("sys.argv", ["headcount", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr().err
        assert stopped.value.code == 2, printed
        assert "Traceback" not in printed
        assert {p: p.stat().st_mtime_ns for p in baseline.rglob("*")} == before
        assert out.exists() == there
        return printed.strip().splitlines()[-1]

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--keep", 5], "only 4 heads at enc"),
        (["--keep", 13, "--sites", "enc,dec,cross"], "only 12 heads"),
        (["--penalty", -0.1], "--penalty -0.1"),
        (["--keep", -1], "--keep -1"),
        (["--penalty", 0.1, "--keep", 2], "one of --penalty, --keep and --speedup"),
        ([], "one of --penalty, --keep and --speedup"),
        (["--keep", 2, "--by", "size"], "--by size"),
        (
            ["--penalty", 0.1, "--by", "lrp"],
            "--by lrp needs a number of heads to keep: give --keep N instead of --penalty, or",
        ),
        (
            ["--speedup", 1.2, "--by", "lrp"],
            "--by lrp needs a number of heads to keep: give --keep N instead of --speedup, or",
        ),
        (["--penalty", 0.1, "--even"], "even"),
        (["--keep", 3, "--even"], "Keep 2 or 4"),
        (["--penalty", 0.1, "--no-finetune"], "only pruning by a score"),
        (
            ["--keep", 1, "--by", "lrp", "--no-finetune", "--learning-rate", 0.1],
            "--learning-rate means nothing with --no-finetune.",
        ),
        (
            ["--keep", 1, "--by", "lrp", "--no-finetune", "--updates", 5],
            "Leave out --no-finetune or --updates 5.",
        ),
        (
            ["--keep", 1, "--by", "lrp", "--no-finetune", "--finetune", 5],
            "Leave out --no-finetune or --finetune 5.",
        ),
        (["--keep", 1, "--by", "lrp", "--from-scratch"], "from scratch"),
        (["--keep", 1, "--distil", 1.5], "--distil 1.5"),
        (["--speedup", 1], "--speedup 1"),
        (["--speedup", 1.5, "--keep", 1], "one of --penalty, --keep and --speedup"),
        (["--speedup", 1.5, "--engine", "marian"], "choose among headcount, ctranslate2"),
        (["--keep", 1, "--engine", "headcount"], "where --speedup is measured"),
        (
            ["--keep", 1, "--by", "shape"],
            "--by shape needs a speed-up: give --speedup X instead of --keep, or leave out --by",
        ),
        (["--plan", "--keep", 1, "--sites", "nowhere"], "nowhere"),
        (["--plan", "--keep", 1, "--speedup", 1.5], "one of --penalty, --keep and --speedup"),
        (["--plan", "--penalty", 0.1], "--penalty means nothing with --plan. Leave it out."),
        (["--plan", "--by", "random", "--keep", 1], "--by means nothing with --plan"),
        (["--plan", "--distil", 0.5], "--distil means nothing with --plan"),
        (["--plan", "--seed", 1], "--seed means nothing with --plan"),
        (["--plan", "--out", "out"], "--out means nothing with --plan. Leave it out."),
        (["--keep", 1, "--distil-states", -1], "--distil-states -1"),
        (["--keep", 1, "--teacher", "nowhere"], "nowhere is not a run folder"),
        (["--keep", 1, "--sites", "encoder"], "Unknown site 'encoder'"),
        (["--keep", 99, "--sites", "enc_ff"], "has only 2 blocks of units at enc_ff. Keep at most"),
        (["--keep", "enc_layers=5"], "has only 4 blocks at enc_layers. Keep at most 4"),
        (["--keep", "enc_layers=1,enc_layers=2"], "named twice"),
        (["--keep", "enc=x"], "write a number, or one for each site"),
        (["--keep", "-1"], "--keep"),
        (["--keep", "enc=1", "--sites", "dec"], "--keep names other sites than --sites"),
        (["--keep", 3, "--sites", "enc,enc_ff"], "write --keep enc=3,enc_ff=3"),
        (["--keep", 1, "--sites", "enc_ff", "--by", "confidence"], "not defined at enc_ff"),
        (["--keep", 3, "--sites", "enc_layers", "--even"], "Keep 2 or 4"),
        (["--keep", 1, "--train-only", "everything"], "--train-only"),
        (["--keep", 1, "--updates", 5, "--finetune", 9], "leaves none to choose"),
        (["--penalty", 0.1, "--updates", 5, "--finetune", 5], "leaves none to choose"),
        (["--penalty", 0.1, "--finetune", 1500], "1500 of 1500 updates leaves none"),
        (["--keep", 1, "--by", "random", "--updates", 5, "--finetune", 6], "leaves none"),
    ],
)
def test_settings_that_make_no_sense(fails: Fail, arguments: list[object], said: str) -> None:
    assert said in fails(*arguments)


def test_a_site_without_heads(fails: Fail, baseline: Path, tmp_path: Path) -> None:
    run = load_run(baseline)
    run.model = remove_heads(run.model, run.model.heads.heads(("dec",)))
    run.save(tmp_path / "no-dec")
    line = fails("--penalty", 0.1, "--sites", "enc,dec", run=tmp_path / "no-dec")
    assert "no head at site dec" in line


def test_a_run_that_is_none(fails: Fail, tmp_path: Path) -> None:
    assert "not a run folder" in fails("--penalty", 0.1, run=tmp_path)


def test_other_vocabulary(fails: Fail, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for split in ("train", "dev"):
        (other / f"{split}.en").write_text("кот видит собаку\n" * 20)
        (other / f"{split}.fr").write_text("le chat voit\n" * 20)
    line = fails("--penalty", 0.1, train=other)
    assert "train.en" in line
    assert "not in the vocabulary" in line


def test_a_teacher_of_another_vocabulary(fails: Fail, run_folder: Path) -> None:
    line = fails("--keep", 1, "--teacher", run_folder)
    assert "another source vocabulary" in line


def test_other_languages(fails: Fail, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "corpus.json").write_text('{"languages": {"source": "en", "target": "uk"}}')
    for language in ("en", "uk"):
        (other / f"train.{language}").write_text("the cat\n")
    assert "en-uk" in fails("--penalty", 0.1, train=other)


def test_a_corpus_serves_both_directions(baseline: Path, corpus: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(corpus, tmp_path / "corpus")
    languages = {"source": "fr", "target": "en"}
    (folder / "corpus.json").write_text(json.dumps({"languages": languages}))
    check_corpus(load_run(baseline), folder)


@pytest.mark.parametrize(
    ("dev", "said"), [(None, "dev.en"), (("", ""), "empty"), (("a\nb\n", "a\n"), "lines")]
)
def test_no_held_out_pairs(
    fails: Fail, tmp_path: Path, corpus: Path, dev: tuple[str, str] | None, said: str
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for number, language in enumerate(("en", "fr")):
        shutil.copyfile(corpus / f"train.{language}", other / f"train.{language}")
        if dev is not None:
            (other / f"dev.{language}").write_text(dev[number])
    assert said in fails("--penalty", 0.1, train=other)
    assert not (tmp_path / "out").exists()


def test_no_corpus(fails: Fail, tmp_path: Path) -> None:
    assert "does not exist" in fails("--penalty", 0.1, train=tmp_path / "nowhere")


def test_a_folder_that_exists(fails: Fail, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    assert "already exists" in fails("--penalty", 0.1)
    assert "not made by" in fails("--penalty", 0.1, "--resume")
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


def test_resuming_something_else(fails: Fail, baseline: Path, corpus: Path, tmp_path: Path) -> None:
    from headcount.pruning.prune import prune

    settings = make_settings(keep=2, by="random", updates=0, bleu_sentences=0)
    prune(baseline, corpus, tmp_path / "out", settings)
    same = ("--by", "random", "--no-finetune", "--resume")
    assert "begun with --keep 2" in fails("--keep", 1, *same)
    other = tmp_path / "other"
    shutil.copytree(corpus, other, ignore=shutil.ignore_patterns("prepared"))
    for language in ("en", "fr"):
        path = other / f"train.{language}"
        path.write_text(path.read_text() * 2)
    assert "begun with other text" in fails("--keep", 2, *same, train=other)
    run = load_run(baseline)
    run.model.output_weight.data.add_(1)
    run.save(tmp_path / "changed")
    assert "other weights" in fails("--keep", 2, *same, run=tmp_path / "changed")


def test_settings_from_python() -> None:
    with pytest.raises(UserError, match="--steps 0"):
        make_settings(keep=1, by="random", steps=0)


@pytest.mark.parametrize("verb", ["prune", "prune-sweep"])
@pytest.mark.parametrize(
    ("column", "value"),
    [("mine", float("nan")), ("mine", float("inf")), ("mine", "high"), ("lrp", float("nan"))],
)
def test_a_column_that_is_not_all_numbers(
    fails: Fail, baseline: Path, tmp_path: Path, column: str, value: Any, verb: str
) -> None:
    """Heads are never chosen by such scores without a word."""
    run = shutil.copytree(baseline, tmp_path / "run")
    heads = load_run(run).model.heads.heads()
    rows = [{"head": str(head), column: 0.5} for head in heads]
    rows[1][column] = value
    (run / "analysis").mkdir(exist_ok=True)
    (run / "analysis" / "head-table.json").write_text(json.dumps(rows))
    line = fails("--by", column, "--keep", 1, "--updates", 2, run=run, verb=verb)
    assert column in line


def test_damaged_text_leaves_no_folder_unless_a_pruning_had_begun(
    fails: Fail, baseline: Path, corpus: Path, tmp_path: Path
) -> None:
    """Text is read in full only after the record is written: a refusal takes that back."""
    damaged = shutil.copytree(corpus, tmp_path / "damaged", ignore=lambda *_: {"prepared"})
    with (damaged / "train.en").open("a") as file:
        file.write("the cat\n")
    command = ("--keep", 1, "--by", "random", "--no-finetune")
    assert "121 lines" in fails(*command, train=damaged)
    settings = make_settings(keep=1, by="random", updates=0).resolved(load_run(baseline).config)
    record = open_record(
        tmp_path / "out", new_record(load_run(baseline), damaged, settings), resume=False
    )
    assert "121 lines" in fails(*command, "--resume", train=damaged)
    assert read_record(tmp_path / "out") == json.loads(json.dumps(record))
