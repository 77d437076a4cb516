"""Files are whole or not there; text is read line by line with clear errors."""

from __future__ import annotations

import errno
import gzip
import os
import platform
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headcount.errors import UserError
from headcount.files import (
    atomic_folder,
    atomic_path,
    decoded_lines,
    read_json,
    read_lines,
    write_json,
    write_text,
)


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
