"""The edge of the command line: exit codes, bugs with a log, arguments beyond all sense."""

from __future__ import annotations

import json
import pickle
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headcount.cli import main
from headcount.errors import Interrupted
from headcount.files import read_json, write_json
from headcount.run import resolve_run

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Call `headcount ...`: its exit code, and the last line of its errors."""

    def call(*words: object) -> tuple[int, str]:
        monkeypatch.setattr("sys.argv", ["headcount", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        errors = capsys.readouterr().err
        assert "Traceback" not in errors
        return code, (errors.strip().splitlines() or [""])[-1]

    return call


def test_a_bug_is_one_line_and_a_log(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("deep\ninside")

    monkeypatch.setattr("headcount.run.load_run", broken)
    code, line = run("translate", tmp_path)
    assert code == 70
    assert "a bug in headcount (ZeroDivisionError: deep inside)" in line
    log = Path(line.rsplit(" ", 1)[1])
    assert "Traceback (most recent call last)" in log.read_text()
    log.unlink()


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (Interrupted(signal.SIGTERM, "Stopped."), 143, "Stopped."),
        (KeyboardInterrupt(), 130, "Interrupted."),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("[enforce fail] can't allocate memory: 99 bytes"), 2, "not enough memory"),
        (OSError(5, "Input/output error", "some/file"), 2, "Input/output error: 'some/file'"),
    ],
)
def test_exit_codes(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: BaseException,
    code: int,
    says: str,
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("headcount.run.load_run", broken)
    assert run("translate", tmp_path)[0] == code
    assert says in run("translate", tmp_path)[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["translate", "RUN", "--beam", "1000000"], "beam of 1000000 is too wide"),
        (["translate", "RUN", "--beam", "9" * 20], "too large"),
        (["translate", "RUN", "--length-penalty", "1e308"], "too large"),
        (["translate", "RUN", "--length-penalty", "nan"], "not a finite number"),
        (["translate", "RUN", "--output", ""], "argument after --output is empty"),
        (["translate", "RUN", "--output="], "is empty"),
        (["roles", "RUN", "--seed", "-1"], "negative"),
        (["train", "RUN"], "Name it with --out"),
        (["train", "--resume"], "Give one, or --resume and a run folder"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_arguments_beyond_all_sense(
    run: Run, run_folder: Path, words: list[str], says: str
) -> None:
    code, line = run(*[str(run_folder) if word == "RUN" else word for word in words])
    assert (code, says in line) == (2, True), line


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rank", "--no-such-thing"], "Help: headcount rank -h"),
        (["prune-sweep"], "Help: headcount prune-sweep -h"),
        (["no-such-verb"], "No such command 'no-such-verb'. Help: headcount -h"),
        (["--nothing"], "No such option: --nothing. Help: headcount -h"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    expected: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["headcount", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("headcount: ")
    assert line.endswith(expected)


def test_output_that_cannot_be(run: Run, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("the cat\n")
    command = ["translate", run_folder, "--input", tmp_path / "in", "--output"]
    assert "is a folder" in run(*command, tmp_path)[1]
    assert "a part of its path is a file" in run(*command, tmp_path / "in" / "x")[1]


def test_train_goes_on_from_its_folder_alone(run: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for split in ("train", "dev"):
        (corpus / f"{split}.en").write_text("the cat sees\nthe dog\n" * 4)
        (corpus / f"{split}.fr").write_text("le chat voit\nle chien\n" * 4)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"data: {{corpus: null, folder: {corpus}, source_vocabulary: 40, target_vocabulary: 40}}\n"
        "model: {layers: 1, heads: 2, width: 8, ff_width: 8}\n"
        "training: {updates: 2, batch_tokens: 30, device_tokens: 30, bleu_sentences: 0}\n"
    )
    out = tmp_path / "run"
    assert run("train", recipe, "--out", out, "--quiet")[0] == 0
    assert run("train", "--resume", out, "--set", "training.updates=3", "--quiet")[0] == 0
    states = sorted((out / "checkpoints").glob("*/state.json"))
    assert json.loads(states[-1].read_text())["update"] == 3
    assert run("train", "--resume", "--out", out, "--quiet")[0] == 0


def test_a_head_listed_twice(run: Run, run_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(run_folder, tmp_path / "run")
    layout = read_json(tmp_path / "run" / "heads.json")
    layout["enc"][0] = [0, 0, 1]
    write_json(tmp_path / "run" / "heads.json", layout)
    code, line = run("translate", tmp_path / "run")
    assert (code, "enc.0 lists a head twice" in line) == (2, True)


def test_an_interruption_survives_its_way_from_another_process() -> None:
    stopped = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM, "Stopped.")))
    assert (stopped.number, str(stopped)) == (signal.SIGTERM, "Stopped.")


def test_verbs_take_the_shipped_model_by_name_and_leave_it_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = resolve_run("demo")
    if not (shipped / "model.safetensors").is_file():
        pytest.skip("this installation has no demo model")
    monkeypatch.chdir(tmp_path)
    for language, text in (("en", "The cat sleeps.\n"), ("fr", "Le chat dort.\n")):
        for split in ("train", "dev", "test"):
            Path(f"{split}.{language}").write_text(text * 30)
    before = sorted(shipped.iterdir())
    options = ("--src", "dev.en", "--by", "confidence", "--sentences", "2", "--agreement", "-q")
    assert run("rank", "demo", *options)[0] == 0
    code, printed = run(
        "prune", "demo", "--train", ".", "--keep", "99", "--by", "lrp", "--out", "x"
    )
    assert code == 2
    assert "--keep 99: demo has only 48 heads" in printed
    code, printed = run("export", "demo", "--to", "transformers", "--out", "x")
    assert code == 2
    assert "headcount: demo has what MarianMT does not" in printed
    code, printed = run("prune", "demo", "--train", ".", "--keep", "9", "--by", "no", "--out", "x")
    assert code == 2
    assert "and analysis/head-table.csv of demo has no such numbers" in printed
    code, printed = run("train", "--resume", "demo")
    assert code == 2
    assert "demo is the model that comes with headcount" in printed
    assert "--start-from demo" in printed
    pruning = ("--keep", "12", "--by", "random", "--no-finetune", "-q")
    assert run("prune", "demo", "--train", ".", *pruning, "--out", "pruned")[0] == 0
    assert sorted(shipped.iterdir()) == before
    assert not Path("demo").exists()
