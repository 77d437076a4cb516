"""Files are whole or not there; text is read line by line with clear errors."""

from __future__ import annotations

import errno
import gzip
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import Notice, UserError
from headcount.files import (
    atomic_folder,
    atomic_path,
    csv_text,
    decoded_lines,
    owned,
    read_json,
    read_lines,
    visible,
    write_json,
    write_text,
)
from headcount.yaml_reading import read_yaml


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_path(path) as partial:
            partial.write_text("ne")
            assert path.read_text() == "old"
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(path.parent) == ["file.txt"]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "out") as partial:
            (partial / "a").write_text("a")
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        fail()
    assert os.listdir(tmp_path) == []
    with atomic_folder(tmp_path / "out") as partial:
        (partial / "a").write_text("a")
        assert not (tmp_path / "out").exists()
    assert os.listdir(tmp_path) == ["out"]
    assert os.listdir(tmp_path / "out") == ["a"]


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on the disk"),
        (errno.EDQUOT, "No space left on the disk"),
        (errno.EACCES, "Not allowed to write"),
        (errno.EROFS, "Not allowed to write"),
    ],
)
def test_trouble_with_the_disk_is_one_clear_line(tmp_path: Path, number: int, says: str) -> None:
    path = tmp_path / "file.txt"
    write_text(path, "old")

    def fail() -> None:
        with atomic_path(path) as partial:
            partial.write_text("new")
            raise OSError(number, os.strerror(number))

    with pytest.raises(UserError, match=says):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_other_errors_are_not_hidden(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_path(tmp_path / "x"):
            raise OSError(errno.EIO, "broken disk")

    with pytest.raises(OSError, match="broken disk"):
        fail()


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"))))
def test_lines_are_what_stands_between_line_feeds(lines: list[str]) -> None:
    raw = [f"{line}\n".encode() for line in lines]
    assert list(decoded_lines(raw, "here")) == lines


@pytest.mark.parametrize("name", ["text", "text.gz"])
def test_only_line_feeds_end_lines(tmp_path: Path, name: str) -> None:
    """Unicode's other separators, form feeds and lone carriage returns stand inside lines."""
    content = "one\u2028still one\r\ntwo\x0cstill two\n\nfour\x85still four\rand more"
    opener = gzip.open if name.endswith(".gz") else open
    with opener(tmp_path / name, "wb") as handle:
        handle.write(content.encode("utf-8"))
    assert list(read_lines(tmp_path / name)) == [
        "one\u2028still one",
        "two\x0cstill two",
        "",
        "four\x85still four\rand more",
    ]


def test_invalid_utf8_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"good\nb\xe4d\n")
    lines = read_lines(tmp_path / "text")
    assert next(lines) == "good"
    with pytest.raises(UserError, match=r"text, line 2: not valid UTF-8"):
        next(lines)


@pytest.mark.parametrize("cut", [3, 12, 40])
def test_damaged_gzip(tmp_path: Path, cut: int) -> None:
    content = gzip.compress(os.urandom(500).hex().encode())
    (tmp_path / "text.gz").write_bytes(content[:cut] + b"\xff" * 20)
    with pytest.raises(UserError, match=r"text\.gz"):
        list(read_lines(tmp_path / "text.gz"))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        list(read_lines(tmp_path / "x"))
    with pytest.raises(UserError, match="is a folder, not a file"):
        list(read_lines(tmp_path))


def test_json(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "ü"]}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json") == value
    assert "ü" in (tmp_path / "x.json").read_text(encoding="utf-8")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(UserError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    here = platform.node().replace(".", "-")
    stale = tmp_path / f".run.{here}.{gone.pid}.partial"
    stale.mkdir()
    (stale / "half").write_text("x")
    living = tmp_path / f".run.{here}.{os.getppid()}.partial"
    elsewhere = tmp_path / f".run.other.{gone.pid}.partial"
    elsewhere.mkdir()
    living.mkdir()
    with atomic_folder(tmp_path / "run") as partial:
        (partial / "whole").write_text("y")
    assert not stale.exists()
    assert living.exists()
    assert elsewhere.exists()
    assert (tmp_path / "run" / "whole").read_text() == "y"


def test_a_symbolic_link_keeps_pointing_to_what_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_regular_file_is_written_through(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text(pipe, "through")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    write_text(Path("/dev/null"), "gone")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        write_text(tmp_path, "x")
    with pytest.raises(UserError, match="File name too long"):
        write_text(tmp_path / ("x" * 300), "x")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a part of its path is a file"):
        write_text(tmp_path / "file" / "below", "x")


def test_messages_name_what_was_asked_for(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_folder(tmp_path / "run") as partial:
            raise UserError(f"No space left while writing {partial / 'model'}.", "Free some.")

    with pytest.raises(UserError) as raised:
        fail()
    assert (
        str(raised.value) == f"No space left while writing {tmp_path / 'run' / 'model'}. Free some."
    )


OWNER = """
import sys, time
from pathlib import Path
from headcount.files import owned
with owned(Path(sys.argv[1])):
    print("mine", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_owner_until_that_dies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"mine\n"
        says = rf"run is in use by another headcount \(process {owner.pid} on .*: -c .*run\)"
        with pytest.raises(UserError, match=says), owned(folder, patience=0.1):
            pass
        with owned(tmp_path / "other", patience=0.1):
            pass
        owner.kill()  # leaves the file of the lock behind
        owner.wait()
    with owned(folder, patience=0.1):
        assert not folder.exists()  # to own a folder does not make it
        with pytest.raises(UserError, match="in use"), owned(folder, patience=0.1):
            pass
        # What the owner starts may write too.
        command = [sys.executable, "-c", OWNER.replace("time.sleep(60)", ""), str(folder)]
        assert subprocess.check_output(command) == b"mine\n"
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(self: object, **_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("filelock.FileLock.acquire", no_locks)
    with pytest.warns(Notice, match="has no locks"), owned(tmp_path / "run"):
        pass


def test_cells_are_no_formulas() -> None:
    rows = [{"a": "=1+1", "b": -0.5}, {"a": "-1.5", "b": None}, {"a": "@x", "b": "plain"}]
    assert csv_text(rows, ["a", "b"]) == "a,b\n'=1+1,-0.5\n-1.5,\n'@x,plain\n"


def test_control_characters_are_shown() -> None:
    assert visible("a\tb\nc\x1b[31m\x9b\u202e\ud800") == r"a" "\tb\nc" r"\x1b[31m\x9b\u202e\ud800"


@pytest.mark.parametrize("text", ["[" * 100_000, "1" * 5000, '"\\ud800"', '{"a": 1'])
def test_json_that_no_program_wrote(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json is not valid JSON"):
        read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", "YAML: line 2: the key 'c' is there twice. Fix the file.$"),
        ("a: 1\nb: {c: 1\n", "YAML: line 3: expected ',' or '}', but got '<stream end>'. Fix"),
        ("a: \x00\n", "special characters are not allowed. Fix the file.$"),
        ("[" * 2000, "nested too deeply"),
        ("a: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("- 1\n", "holds no settings"),
    ],
)
def test_yaml_that_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(UserError, match=says):
        read_yaml(tmp_path / "x.yaml")


def test_yaml(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("base: &b {c: 1}\nmore: {<<: *b, d: 2}\n")
    assert read_yaml(tmp_path / "x.yaml") == {"base": {"c": 1}, "more": {"c": 1, "d": 2}}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("I/O error: No space left on device (os error 28)"), "No space left on the"),
        (RuntimeError("cannot write model.bin: No space left on device"), "No space left on the"),
        (ValueError("Permission denied (os error 13)"), "Not allowed to write"),
    ],
)
def test_errors_of_the_system_inside_those_of_libraries(
    tmp_path: Path, error: Exception, said: str
) -> None:
    """As safetensors, tokenizers (Rust), CTranslate2 and ONNX (C++) report them."""
    with pytest.raises(UserError, match=said), atomic_folder(tmp_path / "export"):
        raise error
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RuntimeError, match="another"), atomic_folder(tmp_path / "export"):
        raise RuntimeError("another error")
