"""Two aligned text files to blocks of token ids, in one parallel pass and bounded memory.

One process reads blocks of lines from both files and hashes them on the way, workers turn blocks
into token ids, and the blocks come back in order. Only a few of them are in memory at any time,
however large the corpus, and compressed files are read like plain ones.
"""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import signal
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import bounded_lines
from headcount.processes import end_with_parent, usable_cores

BLOCK_LINES = 10_000
BLOCKS_ALONE = 20  # each worker has to build its own table of words
BLOCKS_PER_WORKER = 3  # one being encoded, one waiting, one on its way back

Progress = Callable[[int, int], None]


class Block(NamedTuple):
    """The same lines of both files; `first` is the number of the first one, counted from 1."""

    first: int
    source: bytes
    target: bytes
    files: tuple[str, str]


class Encoded(NamedTuple):
    """Sentences of one side: ids end to end, [tokens] int32, and lengths, [sentences] int32."""

    ids: np.ndarray
    lengths: np.ndarray


class EncodedBlock(NamedTuple):
    """The pairs of a block that were kept, and how many of its lines were not."""

    sides: tuple[Encoded, Encoded]
    lines: int
    dropped_empty: int
    dropped_long: int


class LineBlocks:
    """Blocks of lines of two files, hashed while they are read."""

    def __init__(self, paths: tuple[Path, Path], progress: Progress | None = None) -> None:
        self._paths = paths
        self._hashes = (_new_hash(), _new_hash())
        self._progress = progress
        self._bytes = sum(path.stat().st_size for path in paths)

    def fingerprints(self) -> tuple[str, str]:
        """Hashes of both texts, once all blocks have been read; as `text_fingerprint`."""
        source, target = self._hashes
        return source.hexdigest(), target.hexdigest()

    def __iter__(self) -> Iterator[Block]:
        with open(self._paths[0], "rb") as source, open(self._paths[1], "rb") as target:
            raw = (source, target)
            texts = tuple(map(_decompressed, self._paths, raw))
            names = (str(self._paths[0]), str(self._paths[1]))
            read = 0
            while True:
                lines = [self._read(i, text) for i, text in enumerate(texts)]
                if len(lines[0]) != len(lines[1]):
                    counts = [
                        read + len(lines[i]) + self._count_rest(i, texts[i]) for i in range(2)
                    ]
                    raise _unequal(self._paths, counts)
                if not lines[0]:
                    return
                source_lines, target_lines = map(b"".join, lines)
                self._hashes[0].update(source_lines)
                self._hashes[1].update(target_lines)
                yield Block(read + 1, source_lines, target_lines, names)
                read += len(lines[0])
                if self._progress is not None:
                    self._progress(sum(handle.tell() for handle in raw), self._bytes)

    def _read(self, side: int, text: IO[bytes]) -> list[bytes]:
        with _damage(self._paths[side]):
            return list(islice(bounded_lines(text, str(self._paths[side])), BLOCK_LINES))

    def _count_rest(self, side: int, text: IO[bytes]) -> int:
        with _damage(self._paths[side]):
            return sum(1 for _ in bounded_lines(text, str(self._paths[side])))


def text_fingerprint(path: Path) -> str:
    """A hash of the text of a file, the same whether it is compressed or not."""
    digest = _new_hash()
    with open(path, "rb") as raw, _damage(path):
        text = _decompressed(path, raw)
        while block := text.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def encode_blocks(
    blocks: Iterable[Block],
    tokenizers: tuple[Tokenizer, Tokenizer],
    max_length: int | None = None,
    workers: int | None = None,
) -> Iterator[EncodedBlock]:
    """Encode blocks on all cores (or `workers` of them); they come back in order.

    Without `workers`, a small corpus is encoded in this process: starting others would take longer.
    """
    remaining = iter(blocks)
    if workers is None:
        for block in islice(remaining, BLOCKS_ALONE):
            yield encode_block(block, tokenizers, max_length)
        workers = usable_cores()
    first = list(islice(remaining, 2))
    if workers == 1 or len(first) < 2:  # not worth starting processes for
        for block in chain(first, remaining):
            yield encode_block(block, tokenizers, max_length)
        return
    content = (tokenizers[0].to_dict(), tokenizers[1].to_dict(), max_length)
    with _quiet_forks(), ProcessPoolExecutor(workers, _context(), _start_worker, content) as pool:
        waiting: deque[Future[EncodedBlock]] = deque()
        try:
            for block in chain(first, remaining):
                waiting.append(pool.submit(_work, block))
                if len(waiting) >= workers * BLOCKS_PER_WORKER:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                "A process that encodes text was killed.",
                "Memory may have run out: run again with fewer workers.",
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def encode_block(
    block: Block, tokenizers: tuple[Tokenizer, Tokenizer], max_length: int | None
) -> EncodedBlock:
    """Token ids of a block's pairs, without those that are empty or too long on one side."""
    source = _encode(block.source, block.first, block.files[0], tokenizers[0])
    target = _encode(block.target, block.first, block.files[1], tokenizers[1])
    empty = (source.lengths == 0) | (target.lengths == 0)
    longest = np.maximum(source.lengths, target.lengths)
    too_long = ~empty & (longest > max_length) if max_length else np.zeros_like(empty)
    keep = ~(empty | too_long)
    if not keep.all():
        source, target = (
            Encoded(side.ids[np.repeat(keep, side.lengths)], side.lengths[keep])
            for side in (source, target)
        )
    return EncodedBlock((source, target), len(keep), int(empty.sum()), int(too_long.sum()))


def _encode(raw: bytes, first: int, file: str, tokenizer: Tokenizer) -> Encoded:
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = first + raw.count(b"\n", 0, error.start)
        raise UserError(
            f"{file}, line {line}: not valid UTF-8 ({error.reason}).",
            "Convert the file to UTF-8 first.",
        ) from error
    if not lines[-1]:  # what follows the last line feed is not a line
        lines.pop()
    return Encoded(*tokenizer.encode_flat(lines))


# In a worker process: the arguments of `_start_worker`.
_tokenizers: tuple[Tokenizer, Tokenizer]
_max_length: int | None


def _start_worker(source: dict[str, Any], target: dict[str, Any], max_length: int | None) -> None:
    global _tokenizers, _max_length
    _tokenizers = (Tokenizer.from_dict(source), Tokenizer.from_dict(target))
    _max_length = max_length
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process handles it for all
    end_with_parent()


def _work(block: Block) -> EncodedBlock:
    return encode_block(block, _tokenizers, _max_length)


def _context() -> Any:
    """Forked workers start at once and need no import-safe main script; only Linux is safe."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


@contextmanager
def _quiet_forks() -> Iterator[None]:
    """Keep the tokenizers library from warning about forks: workers use no threads of its own."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


def _new_hash() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=16)


def _decompressed(path: Path, raw: IO[bytes]) -> IO[bytes]:
    return gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[return-value]


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}).", "Fetch it again.") from error


def _unequal(paths: tuple[Path, Path], counts: list[int]) -> UserError:
    return UserError(
        f"{paths[0]} has {counts[0]} lines but {paths[1]} has {counts[1]}.",
        "Line n of one must be the translation of line n of the other.",
    )
