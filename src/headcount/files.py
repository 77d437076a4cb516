"""Writing files so that nothing is ever half-written, and reading text so that errors are clear.

Also: who owns an output folder (`owned`), and which names from a file may become paths (`inside`).
"""

from __future__ import annotations

import csv
import errno
import glob
import gzip
import io
import json
import os
import platform
import re
import shlex
import shutil
import sys
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Any

from headcount.errors import Notice, UserError

OWNED = "HEADCOUNT_OWNED"
"""Environment variable: folders that this process's parents own, so that it may write there."""

PATIENCE = 2.0
"""Seconds to wait for the owner of a folder: one that is being stopped may still be saving."""


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on success it is moved over `path`.

    A reader sees either the old file or the whole new one, also after a power cut: the content
    is flushed to the disk before the rename. Of a symbolic link the target is replaced. Anything
    but a regular file (`/dev/null`, a named pipe) cannot be replaced: it is written to directly.
    """
    shown = path
    with disk_errors(shown):
        path = Path(os.path.realpath(path)) if path.is_symlink() else path
        if path.is_dir():
            raise UserError(f"{shown} is a folder.", "Give the name of a file.")
        special = path.exists() and not path.is_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path if special else _partial(path)
    try:
        with disk_errors(shown), _shown_as(shown, partial):
            yield partial
            if not special:
                _flush(partial)
                os.replace(partial, path)
    finally:
        if not special:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`; on success it becomes `path`, else it is removed."""
    shown, path = path, path.absolute()  # "." has no name to put a partial folder beside
    with disk_errors(shown):
        partial = _partial(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
    try:
        with disk_errors(shown), _shown_as(shown, partial):
            yield partial
            for written in partial.rglob("*"):
                if written.is_file():
                    _flush(written)
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _shown_as(path: Path, partial: Path) -> Iterator[None]:
    """Make messages name the path that the user asked for, not the temporary one."""
    try:
        yield
    except UserError as error:
        if str(partial) not in str(error):
            raise
        texts = [t.replace(str(partial), str(path)) for t in (error.problem, error.remedy)]
        raise UserError(*texts) from error


@contextmanager
def owned(folder: Path, mine: bool = True, patience: float = PATIENCE) -> Iterator[None]:
    """Be the only process that writes into a folder; a second one is told who the owner is.

    The lock is a file beside the folder, `.NAME.owner`. The system releases it when the owner ends,
    however it ends, and on network file systems too as far as they have locks (NFS, Lustre). Where
    there are none a notice says so. Processes that the owner starts may write as well. With `mine`
    false nothing happens: under torchrun the leader alone owns the folder for all.
    """
    from filelock import FileLock, Timeout

    path = Path(os.path.realpath(folder))
    inherited = os.environ.get(OWNED, "").split(os.pathsep)
    if not mine or (str(path) in inherited and str(path) not in _OWNED_HERE):
        yield
        return
    with disk_errors(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.owner")
    if path.is_dir() and not os.access(path.parent, os.W_OK):
        file = path / ".owner"
    lock = FileLock(str(file), fallback_to_soft=False)
    try:
        with disk_errors(folder):
            lock.acquire(timeout=patience)
        me = {"host": platform.node(), "pid": os.getpid(), "command": shlex.join(sys.argv)}
        with suppress(OSError):  # a full disk: then the file cannot name the owner
            file.write_text(json.dumps(me), encoding="utf-8")
    except Timeout as error:
        raise UserError(
            f"{folder} is in use by another headcount ({_owner(file)}).",
            "Wait until it has ended, or choose another folder.",
        ) from error
    except (OSError, NotImplementedError) as error:
        if not isinstance(error, NotImplementedError) and error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            Notice(
                f"The file system of {folder} has no locks: make sure that no other process"
                " writes there."
            ),
            stacklevel=3,
        )
        yield
        return
    _OWNED_HERE.add(str(path))
    os.environ[OWNED] = os.pathsep.join([*filter(None, inherited), str(path)])
    try:
        yield
    finally:
        _OWNED_HERE.discard(str(path))
        rest = [name for name in os.environ[OWNED].split(os.pathsep) if name != str(path)]
        os.environ[OWNED] = os.pathsep.join(rest)
        file.unlink(missing_ok=True)  # while the lock is held: a waiting process checks again
        lock.release()


_OWNED_HERE: set[str] = set()
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}


def _owner(file: Path) -> str:
    """Who holds a lock, as far as its file says."""
    try:
        owner = json.loads(file.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on {owner['host']}: {owner['command']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "the lock file does not say which process"


def inside(folder: Path, name: object, ending: str = "") -> Path:
    """The path of `name` below `folder`, for a name that was read from a file.

    Such a name may have folders in it (`runs/en-fr`), but never leads out of the folder.
    """
    text = str(name)
    parts = PurePosixPath(text).parts
    if (
        not parts
        or ".." in parts
        or text.startswith("/")
        or any(character in text for character in "\\\0:")
        or any(part.startswith("~") for part in parts)
    ):
        raise UserError(
            f"'{visible(text)}' does not name anything inside {folder}.",
            "Names may not lead out of their folder; fix the file that has this one.",
        )
    return folder / f"{text}{ending}"


def _partial(path: Path) -> Path:
    """Where `path` is written until it is complete; leftovers of killed processes are removed."""
    here = platform.node().replace(".", "-")  # other machines may share this file system
    if not path.parent.is_dir():
        return path.with_name(f".{path.name}.{here}.{os.getpid()}.partial")
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
        with suppress(PermissionError):
            os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process in while the others wait; `path` is an empty file that stays.

    Where the system or the file system has no locks, no process waits.
    """
    from filelock import FileLock

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(path), fallback_to_soft=False)
    try:
        lock.acquire()
    except (OSError, NotImplementedError):
        yield
        return
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into a message for people."""
    try:
        yield
    except Exception as error:
        number = 0 if isinstance(error, UserError) else _system_error(error) or 0
        remedy = "Choose another path."
        if number in (errno.ENOSPC, errno.EDQUOT):
            problem = f"No space left on the disk while writing {path}."
            remedy = "Free some and run the same command again; nothing was left half-written."
        elif number in (errno.EACCES, errno.EPERM, errno.EROFS):
            problem = f"Not allowed to write {path}."
        elif number in (errno.ENOTDIR, errno.EEXIST):
            problem = f"{path} cannot be created: a part of its path is a file."
        elif number in (errno.ENAMETOOLONG, errno.EISDIR, errno.ELOOP, errno.EFBIG):
            problem = f"{visible(str(path)[:200])} cannot be written ({os.strerror(number)})."
        else:
            raise
        raise UserError(problem, remedy) from error


def _system_error(error: Exception) -> int | None:
    """The system's number for an error; libraries in Rust and C++ hide it in their message."""
    if isinstance(error, OSError):
        return error.errno
    if hidden := re.search(r"os error (\d+)", str(error)):
        return int(hidden[1])
    return errno.ENOSPC if os.strerror(errno.ENOSPC) in str(error) else None


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with atomic_path(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, readable by people."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Write a CSV file atomically."""
    write_text(path, csv_text(rows, columns))


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """A table as CSV. Text that a spreadsheet would run as a formula gets a quote before it."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([_harmless(name) for name in columns])
    writer.writerows([[_harmless(row.get(name)) for name in columns] for row in rows])
    return buffer.getvalue()


def _harmless(cell: Any) -> Any:
    if cell is None:
        return ""
    if not isinstance(cell, str) or cell[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return cell
    try:
        float(cell)
    except ValueError:
        return f"'{cell}"
    return cell


def visible(text: str) -> str:
    """Text whose control characters are made harmless: they are shown as `\\x1b`."""
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


# All of Unicode's control characters but tab and line feed, what turns the direction of text, and
# halves of surrogate pairs, which cannot be printed at all.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def read_json(path: Path) -> Any:
    """Read a JSON file, naming the file where it is damaged."""
    require_file(path)
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text)
        if re.search(r"\\u[dD][89a-fA-F]", text):  # halves of characters cannot be written again
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise UserError(
            f"{path} is not valid JSON ({reason}).", "Restore it or create it again."
        ) from error
    return value


@contextmanager
def parsing(path: Path, remedy: str = "Restore it or create it again.") -> Iterator[None]:
    """Wrap code that parses a file's content: its exceptions become one clear line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        reason = visible(f"{type(error).__name__}: {error}")[:200]
        raise UserError(f"{path} does not hold what it should ({reason}).", remedy) from error


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
        yield from decoded_lines(bounded_lines(handle, str(path)), str(path))


LONGEST_LINE = 10_000_000  # bytes


def bounded_lines(handle: IO[bytes] | BufferedIOBase, name: str) -> Iterator[bytes]:
    """Lines of a file; one above 10 MB is refused before it is in memory.

    A few kilobytes of `.gz` can hold a line of gigabytes.
    """
    for line in iter(lambda: handle.readline(LONGEST_LINE + 1), b""):
        if len(line) > LONGEST_LINE:
            raise UserError(
                f"{name} has a line of more than {LONGEST_LINE // 1_000_000} MB.",
                "Give text with one sentence per line.",
            )
        yield line


class TextFile:
    """The lines of a text file as `read_lines` gives them, every loop reads them again."""

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
