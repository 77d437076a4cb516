"""SentencePiece and subword-nmt: from two files of sentences to BPE and token ids on disk.

    with_subwords.py sentencepiece|subword-nmt --folder DIR --vocabulary N

Does for `source.txt` and `target.txt` of the folder what headcount's steps `bpe` and `prepare` do
together, in one process, and prints what it cost.
"""

from __future__ import annotations

import argparse
import json
import resource
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

SIDES = ("source", "target")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--vocabulary", type=int)
    options = parser.parse_args()
    results = PEERS[options.peer](options.folder, options.vocabulary)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2)} | results))


def _sentencepiece(folder: Path, vocabulary: int) -> dict[str, Any]:
    import numpy as np
    import sentencepiece

    tokens = 0
    for side in SIDES:
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / f"{side}.txt"),
            model_prefix=str(folder / f"sp.{side}"),
            vocab_size=vocabulary,
            model_type="bpe",
            minloglevel=2,
        )
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"sp.{side}.model"))
        with open(folder / f"sp.{side}.ids", "wb") as out:
            lines = _plain_lines(folder / f"{side}.txt")
            while chunk := list(islice(lines, 10_000)):
                ids = np.fromiter(chain.from_iterable(model.encode(chunk)), dtype=np.uint16)
                tokens += len(ids)
                out.write(ids.tobytes())
    return {"tokens": tokens}


def _subword_nmt(folder: Path, vocabulary: int) -> dict[str, Any]:
    import numpy as np
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    tokens = 0
    for side in SIDES:
        codes = folder / f"{side}.codes"
        with open(folder / f"{side}.txt", encoding="utf-8") as text, open(codes, "w") as out:
            learn_bpe(text, out, vocabulary)
        with open(codes, encoding="utf-8") as merges:
            model = BPE(merges)
        numbers: dict[str, int] = {}
        with open(folder / f"{side}.ids", "wb") as ids_file:
            for line in _plain_lines(folder / f"{side}.txt"):
                pieces = model.process_line(line).split()
                ids = np.array([numbers.setdefault(piece, len(numbers)) for piece in pieces])
                tokens += len(ids)
                ids_file.write(ids.astype(np.uint16).tobytes())
    return {"tokens": tokens}


def _plain_lines(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8") as text:
        yield from (line.rstrip("\n") for line in text)


PEERS = {"sentencepiece": _sentencepiece, "subword-nmt": _subword_nmt}


if __name__ == "__main__":
    main()
