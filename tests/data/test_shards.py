"""Token shards: what is on disk is what a plain loop gives, and bad input is named."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from headcount.data import encoding, shards
from headcount.data.encoding import Block, LineBlocks, encode_blocks, text_fingerprint
from headcount.data.shards import Shards, prepare
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.files import read_lines

WORDS = ["the", "the", "a", "cat", "dog", "house", "école", "garçon", "sees,", "takes", "loves!"]


def sentences(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(0, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def bpe() -> tuple[Tokenizer, Tokenizer]:
    return Tokenizer.train(sentences(300, 0), 60), Tokenizer.train(sentences(300, 1), 80)


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "train.en", tmp_path / "train.fr"
    for seed, path in enumerate(paths):
        path.write_text("".join(f"{line}\n" for line in sentences(230, seed)), encoding="utf-8")
    return paths


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that 230 lines make many, the last one not full."""
    monkeypatch.setattr(encoding, "BLOCK_LINES", 16)


def slowly(
    texts: tuple[Path, Path], bpe: tuple[Tokenizer, Tokenizer], max_length: int | None = None
) -> list[tuple[list[int], list[int]]]:
    """The kept pairs of two files, by a plain loop."""
    lines = [path.read_text(encoding="utf-8").removesuffix("\n").split("\n") for path in texts]
    encoded = [
        (bpe[0].encode(source), bpe[1].encode(target))
        for source, target in zip(*lines, strict=True)
    ]
    longest = max_length or 10**9
    return [(s, t) for s, t in encoded if s and t and max(len(s), len(t)) <= longest]


def all_pairs(shards: Shards) -> list[tuple[list[int], list[int]]]:
    return [(s.tolist(), t.tolist()) for s, t in map(shards.pair, range(len(shards)))]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("max_length", [None, 9])
def test_shards_hold_what_a_plain_loop_gives(
    texts, bpe, tmp_path: Path, workers: int, max_length: int | None
) -> None:
    made = prepare(*texts, *bpe, tmp_path / "out", workers=workers, max_length=max_length)
    expected = slowly(texts, bpe, max_length)
    assert all_pairs(made) == expected
    assert len(made) == len(expected)
    assert made.source_lengths.tolist() == [len(s) for s, _ in expected]
    assert made.target_lengths.tolist() == [len(t) for _, t in expected]
    assert made.source_lengths.dtype == np.int32
    assert made.source_tokens == sum(len(s) for s, _ in expected)
    assert made.target_tokens == sum(len(t) for _, t in expected)
    assert made.source_ids.dtype == np.uint16
    assert made.dropped_empty + made.dropped_long == 230 - len(expected)
    assert made.dropped_empty > 0
    assert (made.dropped_long > 0) == (max_length is not None)


def test_frequencies_count_the_tokens_of_kept_pairs(texts, bpe, tmp_path: Path) -> None:
    made = prepare(*texts, *bpe, tmp_path / "out", max_length=9)
    expected = slowly(texts, bpe, 9)
    for side, found in enumerate((made.source_frequencies, made.target_frequencies)):
        counts = Counter(id_ for pair in expected for id_ in pair[side])
        assert found.tolist() == [counts[id_] for id_ in range(bpe[side].size)]


def test_large_vocabularies_get_wide_ids(texts, bpe, tmp_path: Path) -> None:
    stored = bpe[0].to_dict()
    content = json.loads(json.dumps(stored["tokenizer"]))
    content["model"]["vocab"].update({f"unused{i}": bpe[0].size + i for i in range(1 << 16)})
    moved = content["model"]["vocab"]["▁"]
    content["model"]["vocab"]["▁"] = bpe[0].size + (1 << 16)
    content["model"]["vocab"]["stand-in"] = moved
    wide = Tokenizer(content)
    made = prepare(*texts, wide, bpe[1], tmp_path / "out")
    assert made.source_ids.dtype == np.uint32
    assert all_pairs(made) == slowly(texts, (wide, bpe[1]))


def test_shards_are_read_only_maps(texts, bpe, tmp_path: Path) -> None:
    made = prepare(*texts, *bpe, tmp_path / "out")
    assert isinstance(made.source_ids, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        made.pair(0)[0][0] = 1


# Reading text


def test_compressed_text_gives_the_same_shards(texts, bpe, tmp_path: Path) -> None:
    plain = prepare(*texts, *bpe, tmp_path / "plain")
    zipped = [path.with_name(path.name + ".gz") for path in texts]
    for path, packed in zip(texts, zipped, strict=True):
        packed.write_bytes(gzip.compress(path.read_bytes()))
    made = prepare(*zipped, *bpe, tmp_path / "zipped")
    assert all_pairs(made) == all_pairs(plain)
    assert made.recipe == plain.recipe


def test_only_line_feeds_end_a_line(bpe, tmp_path: Path) -> None:
    texts = tmp_path / "a", tmp_path / "b"
    texts[0].write_bytes("the\u2028cat\r\na\x0bdog\r\nhouse".encode())
    texts[1].write_bytes("a\x85cat\nthe cat\nthe house\n".encode())
    made = prepare(*texts, *bpe, tmp_path / "out")
    assert bpe[0].decode_batch(s for s, _ in all_pairs(made)) == ["the cat", "a dog", "house"]
    assert bpe[1].decode_batch(t for _, t in all_pairs(made)) == ["a cat", "the cat", "the house"]


def test_empty_files_give_empty_shards(bpe, tmp_path: Path) -> None:
    texts = tmp_path / "a", tmp_path / "b"
    for path in texts:
        path.touch()
    made = prepare(*texts, *bpe, tmp_path / "out")
    assert len(made) == 0
    assert made.source_frequencies.sum() == 0


def test_progress_rises_to_all_bytes(texts, bpe, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    prepare(*texts, *bpe, tmp_path / "out", progress=lambda done, total: told.append((done, total)))
    total = sum(path.stat().st_size for path in texts)
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_a_small_corpus_starts_no_processes(
    texts: tuple[Path, Path],
    bpe: tuple[Tokenizer, Tokenizer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "usable_cores", lambda: 2)
    monkeypatch.setattr(encoding, "ProcessPoolExecutor", None)  # to call it would fail
    alone = list(encode_blocks(LineBlocks(texts), bpe))
    assert len(alone) > 2
    monkeypatch.undo()
    monkeypatch.setattr(encoding, "BLOCK_LINES", 16)
    monkeypatch.setattr(encoding, "BLOCKS_ALONE", 1)
    monkeypatch.setattr(encoding, "usable_cores", lambda: 2)
    together = list(encode_blocks(LineBlocks(texts), bpe))
    assert [block.lines for block in together] == [block.lines for block in alone]
    for one, other in zip(alone, together, strict=True):
        for side, same in zip(one.sides, other.sides, strict=True):
            assert np.array_equal(side.ids, same.ids)


def test_blocks_are_not_read_far_ahead(texts, bpe) -> None:
    """Memory stays flat only while reading waits for encoding."""
    read = 0

    def counted():
        nonlocal read
        for block in LineBlocks(texts):
            read += 1
            yield block

    for done, _ in enumerate(encode_blocks(counted(), bpe, workers=2)):
        assert read - done <= 2 * encoding.BLOCKS_PER_WORKER
    assert read == -(-230 // 16)


# Bad input leaves nothing behind


def test_different_line_counts_are_named(texts, bpe, tmp_path: Path) -> None:
    with open(texts[1], "a") as more:
        more.write("the cat\n" * 40)
    with pytest.raises(UserError, match=r"train\.en has 230 lines .*train\.fr has 270"):
        prepare(*texts, *bpe, tmp_path / "out", workers=2)
    with pytest.raises(UserError, match=r"train\.fr has 270 lines .*train\.en has 230"):
        prepare(texts[1], texts[0], *bpe, tmp_path / "out", workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.en", "train.fr"]


@pytest.mark.parametrize("workers", [1, 2])
def test_invalid_utf8_is_named_by_file_and_line(texts, bpe, tmp_path: Path, workers: int) -> None:
    lines = texts[1].read_bytes().split(b"\n")
    lines[99] = "garçon".encode("latin-1")
    texts[1].write_bytes(b"\n".join(lines))
    with pytest.raises(UserError, match=r"train\.fr, line 100: not valid UTF-8"):
        prepare(*texts, *bpe, tmp_path / "out", workers=workers)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.en", "train.fr"]


def test_a_missing_file_is_named(texts, bpe, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        prepare(texts[0], tmp_path / "nowhere", *bpe, tmp_path / "out")


@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_a_damaged_archive_is_named(texts, bpe, tmp_path: Path, damage: str) -> None:
    packed = tmp_path / "train.en.gz"
    content = gzip.compress(texts[0].read_bytes())
    packed.write_bytes(content[:-20] if damage == "cut" else content[:40] + bytes(40))
    with pytest.raises(UserError, match=r"train\.en\.gz is damaged"):
        prepare(packed, texts[1], *bpe, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(texts, bpe, tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards._Writer, "add", full)
    with pytest.raises(UserError, match="No space left"):
        prepare(*texts, *bpe, tmp_path / "out", workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.en", "train.fr"]


def test_a_folder_with_other_files_is_not_replaced(texts, bpe, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    with pytest.raises(UserError, match=r"holds other files \(thesis\.txt\)"):
        prepare(*texts, *bpe, tmp_path / "out")
    with pytest.raises(UserError, match="is a file"):
        prepare(*texts, *bpe, texts[0])
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"


# Reuse


def test_the_same_preparation_is_reused(texts, bpe, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "out"
    first = prepare(*texts, *bpe, out, max_length=9)
    monkeypatch.setattr(shards, "encode_blocks", None)  # any encoding would fail
    again = prepare(*texts, *bpe, out, max_length=9)
    assert all_pairs(again) == all_pairs(first)


def test_a_changed_preparation_is_made_anew(texts, bpe, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(*texts, *bpe, out)
    assert all_pairs(prepare(*texts, *bpe, out, max_length=9)) == slowly(texts, bpe, 9)
    other = (bpe[1], bpe[0])
    assert all_pairs(prepare(*texts, *other, out)) == slowly(texts, other)
    content = texts[0].read_text().replace("cat", "dog")  # as many bytes as before
    texts[0].write_text(content)
    assert all_pairs(prepare(*texts, *other, out)) == slowly(texts, other)


FILES = ["source.bin", "target.offsets", "frequencies.src.npy", "prepared.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_damaged_shards_are_named_and_made_anew(
    texts, bpe, tmp_path: Path, name: str, damage: str
) -> None:
    out = tmp_path / "out"
    prepare(*texts, *bpe, out)
    path = out / name
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-7])
    else:
        path.unlink()
    with pytest.raises(UserError, match=name):
        Shards.load(out)
    assert all_pairs(prepare(*texts, *bpe, out)) == slowly(texts, bpe)


@pytest.mark.parametrize("content", ["{}", "[]", '{"recipe": {"format": 99}}'])
def test_a_strange_description_is_named(texts, bpe, tmp_path: Path, content: str) -> None:
    prepare(*texts, *bpe, tmp_path / "out")
    (tmp_path / "out" / "prepared.json").write_text(content)
    with pytest.raises(UserError, match=r"prepared\.json is damaged"):
        Shards.load(tmp_path / "out")


def test_offsets_that_do_not_fit_are_named(texts, bpe, tmp_path: Path) -> None:
    prepare(*texts, *bpe, tmp_path / "out")
    path = tmp_path / "out" / "source.offsets"
    offsets = np.fromfile(path, "<i8")
    offsets[5], offsets[6] = offsets[6], offsets[5]
    offsets.tofile(path)
    with pytest.raises(UserError, match=r"source\.offsets is damaged"):
        _ = Shards.load(tmp_path / "out").source_lengths


def test_the_fingerprint_of_a_text_is_that_of_its_blocks(texts) -> None:
    blocks = LineBlocks(texts)
    assert sum(1 for _ in blocks) > 1
    assert blocks.fingerprints() == (text_fingerprint(texts[0]), text_fingerprint(texts[1]))


# Processes


def test_a_killed_worker_is_an_error_for_people(bpe) -> None:
    def blocks():
        for number in range(100):
            if number == 20:
                for child in encoding.multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
            yield Block(number + 1, b"the cat\n", b"a dog\n", ("a", "b"))

    with pytest.raises(UserError, match="was killed"):
        list(encode_blocks(blocks(), bpe, workers=2))


def test_workers_end_with_a_killed_first_process(bpe, tmp_path: Path) -> None:
    bpe[0].save(tmp_path / "bpe.json")
    script = """
import multiprocessing, sys, time
from pathlib import Path
from headcount.data.encoding import Block, encode_blocks
from headcount.data.tokenizer import Tokenizer

def blocks():
    for number in range(1000):
        yield Block(number + 1, b"the cat\\n", b"a dog\\n", ("a", "b"))

bpe = Tokenizer.load(Path(sys.argv[1]))
for _ in encode_blocks(blocks(), (bpe, bpe), workers=2):
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "bpe.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        workers = [int(pid) for pid in first.stdout.readline().split()]
        assert len(workers) == 2
        first.kill()
    deadline = time.monotonic() + 60
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline, "workers outlive the process that started them"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"


def test_ids_that_no_token_has_are_damage(texts, bpe, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    whole = all_pairs(prepare(*texts, *bpe, out))
    ids = np.fromfile(out / "source.bin", dtype="<u2")
    ids[3] = bpe[0].size
    ids.tofile(out / "source.bin")
    with pytest.raises(UserError, match=rf"source.bin is damaged \(token {bpe[0].size} of a voc"):
        Shards.load(out)
    assert all_pairs(prepare(*texts, *bpe, out)) == whole  # made anew


def test_a_huge_line_in_a_small_file_is_refused(bpe, tmp_path: Path) -> None:
    paths = tmp_path / "train.en.gz", tmp_path / "train.fr.gz"
    for path in paths:
        with gzip.open(path, "wb", compresslevel=1) as handle:
            handle.write(b"ok\n")
            for _ in range(11):
                handle.write(b"a" * 1_000_000)
    with pytest.raises(UserError, match="a line of more than 10 MB"):
        prepare(*paths, *bpe, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="a line of more than 10 MB"):
        list(read_lines(paths[0]))


@pytest.mark.parametrize(("old", "new"), [(b")", b" "), (b"{", b"("), (b"(", b"[")])
def test_a_damaged_header_of_numbers_is_named(
    texts, bpe, tmp_path: Path, old: bytes, new: bytes
) -> None:
    """numpy reads it as an expression of Python, and fails with that language's errors."""
    prepare(*texts, *bpe, tmp_path / "shards")
    path = tmp_path / "shards" / "frequencies.src.npy"
    path.write_bytes(path.read_bytes().replace(old, new, 1))
    with pytest.raises(UserError, match=r"frequencies\.src\.npy is damaged"):
        Shards.load(tmp_path / "shards")
