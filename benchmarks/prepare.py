"""How fast a corpus becomes token shards, and in how much memory.

    python benchmarks/prepare.py [--corpus DIR] [--pairs 100000,1000000,2000000]

Real pairs are repeated up to each size and prepared by a fresh process, while the memory of that
process and all its workers is sampled. Two texts: `repeated` holds the pairs as they are; in
`varied` two letters of every twentieth word are swapped at random, so that new words keep coming as
they do in a large corpus, and looking words up cannot answer everything. Memory is given as the sum
of resident sets (pages shared by the workers counted once each) and as proportional set size (each
page counted once). CPU seconds, of all processes and with their start, tell a slow program from a
busy machine. Results go to benchmarks/results/prepare.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path

from headcount.data.shards import prepare
from headcount.data.tokenizer import Tokenizer
from headcount.files import read_lines, write_json

HERE = Path(__file__).resolve().parent
SIDES = ("source", "target")
SAMPLE_SECONDS = 0.05


def main() -> None:
    options = _options()
    if options.measured is not None:
        _prepare(options.measured)
        return
    sizes = [int(size) for size in options.pairs.split(",")]
    report = {
        "machine": {
            "cores": len(os.sched_getaffinity(0)),
            "cpu": _cpu(),
            "load": os.getloadavg()[0],
        },
        "python": platform.python_version(),
        "corpus": options.corpus.name,
        "vocabulary": options.vocabulary,
    }
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        report["bpe"] = _train(options.corpus, options.vocabulary, folder)
        report["prepare"] = []
        for text in ("repeated", "varied"):
            for size in sizes:
                row = _measure(options.corpus, folder, text, size)
                report["prepare"].append(row)
                print(json.dumps(row), flush=True)
    write_json(options.out, report)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = HERE.parent / "runs" / "data" / "tatoeba-en-fr"
    parser.add_argument("--corpus", type=Path, default=default, help="holds train.en and train.xx")
    parser.add_argument("--pairs", default="100000,1000000,2000000")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--scratch", type=Path, help="where the texts are written meanwhile")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "prepare.json")
    parser.add_argument("--measured", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _texts(corpus: Path) -> list[Path]:
    """English first, then the other language."""
    found = sorted(corpus.glob("train.*"), key=lambda path: path.suffix != ".en")
    if len(found) != 2:
        sys.exit(f"{corpus} does not hold one train.en and one other train file.")
    return found


def _train(corpus: Path, size: int, folder: Path) -> dict[str, float]:
    begin = time.perf_counter()
    for side, path in zip(SIDES, _texts(corpus), strict=True):
        Tokenizer.train(read_lines(path), size).save(folder / f"{side}.json")
    return {"seconds": round(time.perf_counter() - begin, 2)}


def _measure(corpus: Path, folder: Path, text: str, pairs: int) -> dict[str, object]:
    """Prepare so many pairs in a process of its own and watch its memory."""
    for seed, (side, path) in enumerate(zip(SIDES, _texts(corpus), strict=True)):
        lines = chain.from_iterable(map(read_lines, repeat(path)))
        if text == "varied":
            lines = _varied(lines, seed)
        with open(folder / f"{side}.txt", "w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in islice(lines, pairs))
    command = [sys.executable, __file__, "--measured", str(folder)]
    resident = proportional = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            memory = [_memory(pid) for pid in _tree(process.pid)]
            resident = max(resident, sum(rss for rss, _ in memory))
            proportional = max(proportional, sum(pss for _, pss in memory))
            time.sleep(SAMPLE_SECONDS)
        assert process.stdout is not None
        measured = json.loads(process.stdout.read())
    return {
        "text": text,
        "pairs": pairs,
        **measured,
        "pairs_per_second": round(pairs / measured["seconds"]),
        "pairs_per_cpu_second": round(pairs / measured["cpu_seconds"]),
        "peak_rss_mb": round(resident / 1024),
        "peak_pss_mb": round(proportional / 1024),
    }


def _varied(lines: Iterator[str], seed: int) -> Iterator[str]:
    chance = random.Random(seed)
    for line in lines:
        words = line.split(" ")
        for i, word in enumerate(words):
            if len(word) > 2 and chance.random() < 0.05:
                letters = list(word)
                a, b = chance.sample(range(len(word)), 2)
                letters[a], letters[b] = letters[b], letters[a]
                words[i] = "".join(letters)
        yield " ".join(words)


def _prepare(folder: Path) -> None:
    """What is measured: runs in a process of its own and prints its own figures."""
    tokenizers = [Tokenizer.load(folder / f"{side}.json") for side in SIDES]
    texts = [folder / f"{side}.txt" for side in SIDES]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        begin = time.perf_counter()
        shards = prepare(*texts, *tokenizers, Path(out) / "shards")
        seconds = time.perf_counter() - begin
    tokens = shards.source_tokens + shards.target_tokens
    megabytes = round(sum(path.stat().st_size for path in texts) / 1e6, 1)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    measured = {
        "seconds": round(seconds, 3),
        "cpu_seconds": round(sum(usage.ru_utime + usage.ru_stime for usage in used), 3),
        "tokens": tokens,
        "text_mb": megabytes,
    }
    print(json.dumps(measured))


def _tree(pid: int) -> list[int]:
    """A process and all processes that it started."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *chain.from_iterable(_tree(int(child)) for child in listed)]


def _memory(pid: int) -> tuple[int, int]:
    """Resident and proportional set size in KB; nothing for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0
    values = dict(line.split()[:2] for line in lines[1:])
    return int(values["Rss:"]), int(values["Pss:"])


def _cpu() -> str:
    names = [line for line in read_lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0].split(":")[1].strip() if names else platform.machine()


if __name__ == "__main__":
    main()
