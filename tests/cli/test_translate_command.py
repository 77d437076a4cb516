"""`headcount translate` and `headcount score`, as typed into a shell."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import headcount
from headcount.cli import main

Shell = Callable[..., tuple[int, str, str]]

LINES = ["the cat sees", "", "A big dog", "   ", "me !"]


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """Run `headcount ...` with some bytes on standard input: exit code, output, errors."""

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["headcount", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
            code = 0
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.en"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


@pytest.mark.parametrize("read_ahead", [1, 2, 100])
def test_as_many_lines_out_as_in(shell: Shell, run_folder: Path, read_ahead: int) -> None:
    code, out, err = shell(
        "translate", run_folder, "-q", "--read-ahead", read_ahead, stdin="\n".join(LINES).encode()
    )
    assert (code, err) == (0, "")
    assert out.count("\n") == len(LINES)
    assert out.split("\n")[:-1] == headcount.translate(run_folder, LINES)


def test_files_in_and_out(shell: Shell, run_folder: Path, text: Path, tmp_path: Path) -> None:
    target = tmp_path / "new" / "text.fr"
    code, out, _ = shell("translate", run_folder, "--input", text, "--output", target, "--beam", 2)
    assert (code, out) == (0, "")
    assert target.read_text().split("\n")[:-1] == headcount.translate(run_folder, LINES, beam=2)


def test_nbest_lists(shell: Shell, run_folder: Path, text: Path) -> None:
    _, out, _ = shell("translate", run_folder, "--input", text, "--nbest", 3)
    rows = [line.split(" ||| ") for line in out.splitlines()]
    assert [row[0] for row in rows] == [str(number) for number in range(5) for _ in range(3)]
    best = [row[1] for row in rows[::3]]
    assert best == headcount.translate(run_folder, LINES)
    scores = [float(row[2]) for row in rows]
    for first in range(0, len(scores), 3):
        assert scores[first : first + 3] == sorted(scores[first : first + 3], reverse=True)


def test_json_lines(shell: Shell, run_folder: Path, text: Path) -> None:
    _, out, _ = shell("translate", run_folder, "--input", text, "--nbest", 2, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["line"] for row in rows] == list(range(5))
    assert all(len(row["translations"]) == 2 for row in rows)
    best = [row["translations"][0]["text"] for row in rows]
    assert best == headcount.translate(run_folder, LINES)


def test_nothing_half_written(shell: Shell, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"the cat\n" * 9 + b"\xff\n")
    target = tmp_path / "out"
    code, _, err = shell(
        "translate", run_folder, "--input", tmp_path / "in", "--output", target, "--read-ahead", 2
    )
    assert code == 2
    assert "line 10: not valid UTF-8" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--beam", 0], "beam of 0"),
        (["--nbest", 9], "9 best translations"),
        (["--length-penalty", -1], "negative"),
        (["--input", "nowhere.txt"], "nowhere.txt does not exist"),
    ],
)
def test_bad_options(shell: Shell, run_folder: Path, options: list[object], says: str) -> None:
    code, out, err = shell("translate", run_folder, *options, stdin=b"the cat\n")
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_not_a_run(shell: Shell, tmp_path: Path) -> None:
    code, _, err = shell("translate", tmp_path, stdin=b"the cat\n")
    assert code == 2
    assert "not a run folder" in err


def test_score(shell: Shell, run_folder: Path, text: Path, tmp_path: Path) -> None:
    reference = tmp_path / "text.fr"
    reference.write_text("le chat voit\n\nun grand chien\n\nmoi !\n")
    expected = headcount.score(run_folder, text, reference)
    code, out, _ = shell("score", run_folder, "--src", text, "--ref", reference, "--quiet")
    assert (code, out) == (0, f"{expected}\n")
    code, out, _ = shell("score", run_folder, "--src", text, "--ref", reference)
    assert out.splitlines()[1] == f"BLEU: {expected.bleu.signature}"
    kept = tmp_path / "kept.fr"
    code, out, _ = shell(
        "score", run_folder, "--src", text, "--ref", reference, "--json", "--output", kept
    )
    result = json.loads(out)
    assert result["bleu"]["value"] == expected.bleu.value
    assert result["chrf"]["interval"] == expected.chrf.interval
    assert kept.read_text().splitlines() == headcount.translate(run_folder, LINES)


def test_score_against_a_baseline(shell: Shell, run_folder: Path, text: Path) -> None:
    code, out, _ = shell(
        "score",
        run_folder,
        *("--src", text, "--ref", text, "--baseline", run_folder, "--json", "--resamples", 20),
    )
    result = json.loads(out)
    assert code == 0
    assert result["bleu"]["p_value"] == 1.0  # no difference from itself
    assert result["baseline"]["bleu"]["value"] == result["bleu"]["value"]
    assert "bs:20" in result["bleu"]["signature"]


def test_score_of_files_that_do_not_match(
    shell: Shell, run_folder: Path, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "short.fr").write_text("le chat\n")
    code, out, err = shell("score", run_folder, "--src", text, "--ref", tmp_path / "short.fr")
    assert (code, out) == (2, "")
    assert "text.en has 5 lines" in err
    assert "short.fr has 1" in err
    assert len(err.splitlines()) == 1
