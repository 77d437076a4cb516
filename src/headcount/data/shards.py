"""Token shards: a parallel corpus as memory-mapped token ids, prepared in one parallel pass.

A folder of shards holds

    source.bin, target.bin          token ids end to end, uint16 (uint32 for large vocabularies)
    source.offsets, target.offsets  int64: where each sentence begins, and the end
    frequencies.src.npy, .tgt.npy   int64: how often each token occurs
    prepared.json                   counts and fingerprints
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np

from headcount.data.encoding import (
    EncodedBlock,
    LineBlocks,
    Progress,
    encode_blocks,
    text_fingerprint,
)
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import atomic_folder, read_json, require_file, write_json

FORMAT = 1


class Side(NamedTuple):
    """File names of one side of the pairs."""

    ids: str
    offsets: str
    frequencies: str


SOURCE = Side("source.bin", "source.offsets", "frequencies.src.npy")
TARGET = Side("target.bin", "target.offsets", "frequencies.tgt.npy")
SIDES = (SOURCE, TARGET)
PREPARED = "prepared.json"


@dataclass(frozen=True)
class Recipe:
    """What a preparation was made from: equal recipes give equal shards."""

    format: int
    source_text: str
    target_text: str
    source_tokenizer: str
    target_tokenizer: str
    max_length: int | None


class Shards:
    """A prepared corpus, read-only and memory-mapped."""

    def __init__(self, folder: Path, prepared: dict[str, Any]) -> None:
        self.folder = folder
        self.recipe = Recipe(**prepared["recipe"])
        self.dropped_empty = int(prepared["dropped_empty"])
        self.dropped_long = int(prepared["dropped_long"])
        self._pairs = int(prepared["pairs"])
        dtype = np.dtype(prepared["dtype"])
        self.source_tokens = int(prepared["source_tokens"])
        self.target_tokens = int(prepared["target_tokens"])
        self.source_ids = _map(folder / SOURCE.ids, dtype, self.source_tokens)
        self.target_ids = _map(folder / TARGET.ids, dtype, self.target_tokens)
        self.source_offsets = _map(folder / SOURCE.offsets, np.dtype("<i8"), self._pairs + 1)
        self.target_offsets = _map(folder / TARGET.offsets, np.dtype("<i8"), self._pairs + 1)
        self.source_frequencies = _frequencies(folder / SOURCE.frequencies, self.source_tokens)
        self.target_frequencies = _frequencies(folder / TARGET.frequencies, self.target_tokens)
        _check_ids(folder / SOURCE.ids, self.source_ids, self.source_frequencies)
        _check_ids(folder / TARGET.ids, self.target_ids, self.target_frequencies)
        _check_offsets(folder / SOURCE.offsets, self.source_offsets, self.source_tokens)
        _check_offsets(folder / TARGET.offsets, self.target_offsets, self.target_tokens)

    @classmethod
    def load(cls, folder: Path) -> Shards:
        """Open a folder that `prepare` made."""
        path = folder / PREPARED
        prepared = read_json(path)
        try:
            if prepared["recipe"]["format"] != FORMAT:
                raise ValueError(f"format {prepared['recipe']['format']}, not {FORMAT}")
            return cls(folder, prepared)
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error

    def __len__(self) -> int:
        return self._pairs

    @cached_property
    def source_lengths(self) -> np.ndarray:
        """Tokens of each source sentence, EOS not counted: [pairs] int32."""
        return _lengths(self.source_offsets)

    @cached_property
    def target_lengths(self) -> np.ndarray:
        """Tokens of each target sentence, EOS not counted: [pairs] int32."""
        return _lengths(self.target_offsets)

    def pair(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of one pair, without special tokens: [source_length], [target_length]."""
        begin, end = self.source_offsets[index], self.source_offsets[index + 1]
        source = np.asarray(self.source_ids[begin:end])
        begin, end = self.target_offsets[index], self.target_offsets[index + 1]
        return source, np.asarray(self.target_ids[begin:end])


def prepare(
    source: Path,
    target: Path,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    out: Path,
    *,
    workers: int | None = None,
    max_length: int | None = None,
    progress: Progress | None = None,
) -> Shards:
    """Encode two aligned text files into `out`, or reuse `out` if it already holds exactly that.

    Pairs with an empty side, or one of more than `max_length` tokens, are dropped and counted.
    `progress` receives the number of bytes read and the total.
    """
    texts = (require_file(source), require_file(target))
    tokenizers = (source_tokenizer, target_tokenizer)
    if (existing := _reusable(out, texts, tokenizers, max_length)) is not None:
        return existing
    _refuse_foreign(out)
    with atomic_folder(out) as folder:
        blocks = LineBlocks(texts, progress)
        with _Writer(folder, tokenizers) as writer:
            for encoded in encode_blocks(blocks, tokenizers, max_length, workers):
                writer.add(encoded)
        recipe = _recipe(blocks.fingerprints(), tokenizers, max_length)
        write_json(folder / PREPARED, {"recipe": asdict(recipe), **writer.counts()})
        if out.exists():
            shutil.rmtree(out)
    return Shards.load(out)


class _Writer:
    """Appends encoded blocks to the files of a folder, and counts."""

    def __init__(self, folder: Path, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
        self._folder = folder
        self._files = ExitStack()
        largest = max(tokenizer.size for tokenizer in tokenizers)
        self._dtype = np.dtype("<u2" if largest <= 1 << 16 else "<u4")
        self._frequencies = [np.zeros(tokenizer.size, np.int64) for tokenizer in tokenizers]
        self._tokens = [0, 0]
        self._counts = {"lines": 0, "pairs": 0, "dropped_empty": 0, "dropped_long": 0}

    def __enter__(self) -> _Writer:
        def opened(name: str) -> IO[bytes]:
            return self._files.enter_context(open(self._folder / name, "wb"))

        self._ids = [opened(side.ids) for side in SIDES]
        self._offsets = [opened(side.offsets) for side in SIDES]
        for handle in self._offsets:
            handle.write(np.zeros(1, "<i8").tobytes())
        return self

    def add(self, block: EncodedBlock) -> None:
        for i, (ids, lengths) in enumerate(block.sides):
            self._ids[i].write(ids.astype(self._dtype).tobytes())
            self._offsets[i].write((self._tokens[i] + np.cumsum(lengths, dtype="<i8")).tobytes())
            self._tokens[i] += len(ids)
            self._frequencies[i] += np.bincount(ids, minlength=len(self._frequencies[i]))
        self._counts["lines"] += block.lines
        self._counts["pairs"] += len(block.sides[0].lengths)
        self._counts["dropped_empty"] += block.dropped_empty
        self._counts["dropped_long"] += block.dropped_long

    def __exit__(self, *_: object) -> None:
        self._files.close()
        for side, frequencies in zip(SIDES, self._frequencies, strict=True):
            np.save(self._folder / side.frequencies, frequencies)

    def counts(self) -> dict[str, Any]:
        source_tokens, target_tokens = self._tokens
        totals = {"source_tokens": source_tokens, "target_tokens": target_tokens}
        return {**self._counts, **totals, "dtype": self._dtype.str}


def _recipe(
    fingerprints: tuple[str, str],
    tokenizers: tuple[Tokenizer, Tokenizer],
    max_length: int | None,
) -> Recipe:
    source, target = tokenizers
    return Recipe(FORMAT, *fingerprints, source.fingerprint(), target.fingerprint(), max_length)


def _reusable(
    out: Path,
    texts: tuple[Path, Path],
    tokenizers: tuple[Tokenizer, Tokenizer],
    max_length: int | None,
) -> Shards | None:
    """The shards already in `out`, where they are whole and were made from the same things."""
    if not (out / PREPARED).is_file():
        return None
    try:
        existing = Shards.load(out)
    except UserError:
        return None  # damaged: it will be prepared again
    # The texts are hashed only where all else agrees.
    texts_then = existing.recipe.source_text, existing.recipe.target_text
    unread = _recipe(texts_then, tokenizers, max_length)
    if existing.recipe != unread:
        return None
    fingerprints = (text_fingerprint(texts[0]), text_fingerprint(texts[1]))
    return existing if existing.recipe == _recipe(fingerprints, tokenizers, max_length) else None


def _refuse_foreign(out: Path) -> None:
    """Only an older preparation may be replaced, never a user's folder."""
    if out.is_dir():
        ours = {PREPARED, *(name for side in SIDES for name in side)}
        foreign = sorted(path.name for path in out.iterdir() if path.name not in ours)
        if foreign:
            raise UserError(
                f"{out} holds other files ({foreign[0]}).", "Choose another folder for the shards."
            )
    elif out.exists():
        raise UserError(f"{out} is a file.", "Choose another folder for the shards.")


def _map(path: Path, dtype: np.dtype, count: int) -> np.ndarray:
    """A file of exactly `count` numbers, memory-mapped read-only."""
    require_file(path)
    if path.stat().st_size != count * dtype.itemsize:
        raise _damaged(path, f"{path.stat().st_size} bytes, not {count * dtype.itemsize}")
    if not count:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,))


def _check_ids(path: Path, ids: np.ndarray, frequencies: np.ndarray) -> None:
    """Refuse ids that no token has, or that do not occur as often as was counted.

    The former would end in an index error in the middle of training, the latter in another model.
    """
    counts = np.zeros(len(frequencies), np.int64)
    for first in range(0, len(ids), _AT_ONCE):
        part = ids[first : first + _AT_ONCE]
        if int(part.max()) >= len(frequencies):
            vocabulary = len(frequencies)
            raise _damaged(path, f"token {int(part.max())} of a vocabulary of {vocabulary}")
        counts += np.bincount(part, minlength=len(frequencies))
    if not np.array_equal(counts, frequencies):
        raise _damaged(path, "tokens do not occur as often as was counted")


_AT_ONCE = 2**22


def _check_offsets(path: Path, offsets: np.ndarray, tokens: int) -> None:
    """Refuse offsets that do not lead from 0 to the end, always forward."""
    forward = bool((offsets[1:] > offsets[:-1]).all())
    if offsets[0] != 0 or offsets[-1] != tokens or not forward:
        raise _damaged(path, "offsets do not fit the tokens")


def _lengths(offsets: np.ndarray) -> np.ndarray:
    """Sentence lengths, [pairs] int32."""
    lengths = np.empty(len(offsets) - 1, np.int32)
    np.subtract(offsets[1:], offsets[:-1], out=lengths, casting="unsafe")
    return lengths


def _frequencies(path: Path, tokens: int) -> np.ndarray:
    """Token counts, [vocabulary] int64."""
    require_file(path)
    try:
        frequencies: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, SyntaxError, TokenError) as error:
        # numpy reads the header as an expression of Python
        raise _damaged(path, f"{type(error).__name__}: {error}") from error
    if frequencies.ndim != 1 or frequencies.dtype.kind not in "iu":
        raise _damaged(path, "not a list of whole numbers")
    if frequencies.sum() != tokens or (len(frequencies) and frequencies.min() < 0):
        raise _damaged(path, "counts do not add up")
    return frequencies


def _damaged(path: Path, reason: str) -> UserError:
    return UserError(
        f"{path} is damaged ({reason}).", "Delete the folder it is in; it will be prepared again."
    )
