"""Writing files so that nothing is ever half-written, and reading text so that errors are clear."""

from __future__ import annotations

import errno
import glob
import gzip
import json
import os
import platform
import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headcount.errors import UserError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it is moved over `path`.

    A reader sees either the old file or the whole new one, also after a power cut: the content
    is flushed to the disk before the rename.
    """
    partial = _partial(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with disk_errors(path):
            yield partial
            _flush(partial)
            os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, else it is removed."""
    path = path.absolute()  # "." has no name to put a partial folder beside
    partial = _partial(path)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    try:
        with disk_errors(path):
            yield partial
            for inside in partial.rglob("*"):
                if inside.is_file():
                    _flush(inside)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _partial(path: Path) -> Path:
    """Where `path` is written until it is whole; what killed processes left there is removed."""
    here = platform.node().replace(".", "-")  # other machines may share this file system
    for left in path.parent.glob(f".{glob.escape(path.name)}.{glob.escape(here)}.*.partial"):
        owner = left.name.split(".")[-2]
        if owner == str(os.getpid()) or (owner.isdigit() and not _alive(int(owner))):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{here}.{os.getpid()}.partial")


def _flush(path: Path) -> None:
    """Wait until a file's content is on the disk."""
    with open(path, "rb") as written:
        os.fsync(written.fileno())


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process in and the others wait; `path` is an empty file that stays.

    Where the system or the file system has no locks, nobody waits.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = path.open("a")
    with handle:
        with suppress(ImportError, OSError):  # Windows, and some network file systems
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield  # closing the file lets the next one in


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into a message for people."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"No space left on the disk while writing {path}.",
                "Free some space and run the same command again; nothing was left half-written.",
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"Not allowed to write {path}.", "Choose another --out.") from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST):
            raise UserError(
                f"{path} cannot be made: a part of its path is a file.", "Choose another --out."
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file, naming the file where it is damaged."""
    require_file(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}).", "Restore or remake it.") from error


def require_file(path: Path) -> Path:
    """The path itself where it is a file, else a clear error."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise UserError(f"{path} {what}.", "Check the path.")
    return path


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 text file (`.gz` too) without their line ends, as in `decoded_lines`."""
    require_file(path)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as handle:
        yield from decoded_lines(handle, str(path))


class TextFile:
    """The lines of a text file as `read_lines` gives them, read anew by every loop over them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __iter__(self) -> Iterator[str]:
        return read_lines(self.path)


def decoded_lines(handle: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of UTF-8 text; `name` is what to call the text where it is damaged.

    Only line feeds end a line: Unicode's other line separators may stand inside a sentence, and
    counting them as ends would shift every later pair of a parallel corpus.
    """
    try:
        for number, raw in enumerate(handle, start=1):
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{name}, line {number}: not valid UTF-8 ({error.reason}).",
                    "Convert it to UTF-8 first.",
                ) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{name} is damaged ({error}).", "Fetch it again.") from error
