"""How fast a corpus becomes BPE, token shards and batches, and in how much memory.

    python benchmarks/prepare.py [--corpus DIR] [--pairs 100000,1000000,2000000]
    python benchmarks/prepare.py --python PEERS --pairs 100000 --texts repeated --rounds 3

Real pairs are repeated up to each size, and each step runs in a fresh process while the memory of
that process and all its workers is sampled. Two texts: `repeated` holds the pairs as they are; in
`varied` two letters of every twentieth word are swapped at random, so that new words keep coming as
they do in a large corpus, and looking words up cannot answer everything.

With peers, both steps run in one program, as `headcount train` runs them, and take turns with peers
that make the same of the same text, token ids of both sides on disk: SentencePiece (BPE, trainer
and encoder), subword-nmt (learn-bpe, apply-bpe and a vocabulary lookup). All may use all cores.
Each is left out above the number of pairs in PEERS, where it would take too long.

Without peers one core is used, as every further worker holds a table of words of its own. Memory is
the sum of resident sets (a page shared by workers counts once for each), the
proportional set size (every page counts once), and what of it is the processes' own: pages of
mapped files, such as the shards, are the system's cache and count only in the first two. CPU
seconds, of all processes and with their start, tell a slow program from a busy machine. Results go
to benchmarks/results/prepare.json.
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
from collections.abc import Iterator, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

from headcount.data.shards import Shards, prepare
from headcount.data.tokenizer import EOS, PAD, START, Tokenizer
from headcount.files import TextFile, read_lines, write_json

HERE = Path(__file__).resolve().parent
SIDES = ("source", "target")
SAMPLE_SECONDS = 0.05
UPDATES = 200
BATCH_TOKENS, DEVICE_TOKENS = 16000, 4000


def main() -> None:
    options = _options()
    if options.rounds > 1 and not options.python:
        sys.exit("--rounds is for peers (--python): alone, later rounds would find it prepared.")
    if options.step:
        results = STEPS[options.step](options.folder, options.vocabulary)
        print(json.dumps({**results, **_cpu_used()}))
        return
    if not options.python:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one worker, see above
    rows = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        folder = Path(scratch)
        for text in options.texts.split(","):
            for pairs in map(int, options.pairs.split(",")):
                megabytes = _write_texts(options.corpus, folder, text, pairs)
                for step in _turns(_steps(pairs, options.python), options.rounds):
                    row = {"text": text, "pairs": pairs, "text_mb": megabytes, "step": step}
                    row |= _watch(step, folder, options.vocabulary, options.python)
                    row["pairs_per_second"] = round(pairs / row["seconds"])
                    rows.append(row)
                    print(json.dumps(row), flush=True)
    machine = {"cores": len(os.sched_getaffinity(0)), "cpu": _cpu(), "load": os.getloadavg()[1]}
    header = {"machine": machine, "python": platform.python_version()}
    about = {"corpus": options.corpus.name, "vocabulary": options.vocabulary}
    write_json(options.out, {**header, **about, "results": rows})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = HERE.parent / "runs" / "data" / "tatoeba-en-fr"
    parser.add_argument("--corpus", type=Path, default=default, help="holds train.en and train.xx")
    parser.add_argument("--pairs", default="100000,1000000,2000000")
    parser.add_argument("--texts", default="repeated,varied")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--scratch", type=Path, help="a folder for temporary texts")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "prepare.json")
    parser.add_argument("--python", help="interpreter that has the peers; without it no peers")
    parser.add_argument("--rounds", type=int, default=1, help="how often everything is measured")
    # Used by the script itself, for the process that is measured.
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


# The steps that are measured, each in a process of its own


def _bpe(folder: Path, vocabulary: int) -> dict[str, Any]:
    for side in SIDES:
        _learned(folder, side, vocabulary)
    return {}


def _prepare(folder: Path, vocabulary: int) -> dict[str, Any]:
    tokenizers = [Tokenizer.load(folder / f"{side}.json") for side in SIDES]
    return _encoded(folder, tokenizers, folder / "shards")


def _together(folder: Path, vocabulary: int) -> dict[str, Any]:
    tokenizers = [_learned(folder, side, vocabulary) for side in SIDES]
    with tempfile.TemporaryDirectory(dir=folder) as out:  # again in every round
        return _encoded(folder, tokenizers, Path(out) / "shards")


def _learned(folder: Path, side: str, vocabulary: int) -> Tokenizer:
    tokenizer = Tokenizer.train(TextFile(folder / f"{side}.txt"), vocabulary)
    tokenizer.save(folder / f"{side}.json")
    return tokenizer


def _encoded(folder: Path, tokenizers: Sequence[Tokenizer], out: Path) -> dict[str, Any]:
    source, target = (folder / f"{side}.txt" for side in SIDES)
    shards = prepare(source, target, *tokenizers, out)
    return {"tokens": shards.source_tokens + shards.target_tokens}


def _batches(folder: Path, vocabulary: int) -> dict[str, Any]:
    """Plan an epoch and build the batches of some updates, as training does."""
    from headcount.data.batches import padding_waste, plan_epoch, updates  # torch, only here

    shards = Shards.load(folder / "shards")
    lengths = (shards.source_lengths, shards.target_lengths)
    begin = time.perf_counter()
    plan = plan_epoch(*lengths, BATCH_TOKENS, DEVICE_TOKENS, 0, 0)
    planned = time.perf_counter() - begin
    waste = padding_waste(plan, *lengths)
    del plan
    sizes = {"batch_tokens": BATCH_TOKENS, "device_tokens": DEVICE_TOKENS}
    stream = updates(shards, **sizes, seed=0, pad=PAD, start=START, eos=EOS)
    begin = time.perf_counter()
    tokens = sum(
        micro_batch.build().source_tokens
        for update in islice(stream, UPDATES)
        for micro_batch in update.micro_batches
    )
    return {
        "plan_seconds": round(planned, 2),
        "source_tokens_per_second": round(tokens / (time.perf_counter() - begin)),
        "padding_waste": [round(share, 4) for share in waste],
    }


TOGETHER = "headcount"
STEPS = {"bpe": _bpe, "prepare": _prepare, "batches": _batches, TOGETHER: _together}
PEERS = {"sentencepiece": 1_000_000, "subword-nmt": 100_000}  # contenders/with_subwords.py


def _steps(pairs: int, peers: str | None) -> list[str]:
    if not peers:
        return [step for step in STEPS if step != TOGETHER]
    return [TOGETHER, *(peer for peer, most in PEERS.items() if pairs <= most)]


def _turns(steps: Sequence[str], rounds: int) -> list[str]:
    """All steps in every round, each round beginning with another one."""
    return [steps[(i + number) % len(steps)] for number in range(rounds) for i in range(len(steps))]


# Measuring


def _watch(step: str, folder: Path, vocabulary: int, peers: str | None) -> dict[str, Any]:
    """Run one step in a fresh process and sample the memory of all its processes."""
    own = [sys.executable, __file__, "--step"]
    script = HERE / "contenders" / "with_subwords.py"
    theirs = [str(peers), str(script)]
    command = [*(theirs if step in PEERS else own), step, "--folder", str(folder)]
    resident = proportional = own_pages = 0
    with subprocess.Popen(
        [*command, "--vocabulary", str(vocabulary)], stdout=subprocess.PIPE, text=True
    ) as process:
        begin = time.perf_counter()
        while process.poll() is None:
            memory = [_memory(pid) for pid in _tree(process.pid)]
            resident = max(resident, sum(rss for rss, _, _ in memory))
            proportional = max(proportional, sum(pss for _, pss, _ in memory))
            own_pages = max(own_pages, sum(anonymous for _, _, anonymous in memory))
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - begin
        assert process.stdout is not None
        measured: dict[str, Any] = json.loads(process.stdout.read())
    peaks = {"peak_rss_mb": resident // 1024, "peak_pss_mb": proportional // 1024}
    measured["seconds"] = round(seconds, 2)  # of the whole process, as CPU seconds are
    return measured | peaks | {"peak_anonymous_mb": own_pages // 1024}


def _tree(pid: int) -> list[int]:
    """A process and all processes that it started."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *chain.from_iterable(_tree(int(child)) for child in listed)]


def _memory(pid: int) -> tuple[int, int, int]:
    """Resident, proportional and anonymous KB; nothing for a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0, 0, 0
    values = dict(line.split()[:2] for line in lines[1:])
    return int(values["Rss:"]), int(values["Pss:"]), int(values["Anonymous:"])


def _cpu_used() -> dict[str, float]:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {"cpu_seconds": round(sum(usage.ru_utime + usage.ru_stime for usage in used), 2)}


def _cpu() -> str:
    names = [line for line in read_lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return names[0].split(":")[1].strip() if names else platform.machine()


# Texts


def _write_texts(corpus: Path, folder: Path, text: str, pairs: int) -> float:
    """Two aligned files of so many pairs; their size in MB."""
    paths = sorted(corpus.glob("train.*"), key=lambda path: path.suffix != ".en")
    if len(paths) != 2:
        sys.exit(f"{corpus} does not hold one train.en and one other train file.")
    size = 0
    for seed, (side, path) in enumerate(zip(SIDES, paths, strict=True)):
        lines: Iterator[str] = chain.from_iterable(map(read_lines, repeat(path)))
        if text == "varied":
            lines = _varied(lines, seed)
        with open(folder / f"{side}.txt", "w", encoding="utf-8") as out:
            out.writelines(f"{line}\n" for line in islice(lines, pairs))
        size += (folder / f"{side}.txt").stat().st_size
    return round(size / 1e6, 1)


def _varied(lines: Iterator[str], seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for line in lines:
        words = line.split(" ")
        for i, word in enumerate(words):
            if len(word) > 2 and rng.random() < 0.05:
                letters = list(word)
                a, b = rng.sample(range(len(word)), 2)
                letters[a], letters[b] = letters[b], letters[a]
                words[i] = "".join(letters)
        yield " ".join(words)


if __name__ == "__main__":
    main()
