"""CTranslate2 with the float32 model that headcount exported into `FOLDER/ctranslate2`.

with_ctranslate2.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import ctranslate2
from serving import serve


def main() -> None:
    folder = Path(sys.argv[1])
    work = json.loads((folder / "sentences.json").read_text())
    threads = int(os.environ["OMP_NUM_THREADS"])
    engine = ctranslate2.Translator(
        str(folder / "ctranslate2"), device="cpu", inter_threads=1, intra_threads=threads
    )
    names = work["names"]
    numbers = {name: number for number, name in enumerate(names["target"])}

    def translate(batches: list[list[list[str]]]) -> dict[str, Any]:
        outputs = []
        for rows in batches:
            results = engine.translate_batch(
                rows,
                beam_size=work["beam"],
                length_penalty=1.0,
                min_decoding_length=0,
                max_decoding_length=work["longest"],
            )
            outputs.extend([numbers[token] for token in each.hypotheses[0]] for each in results)
        return {"outputs": outputs}

    tasks = {}
    for name, batches in work["tasks"].items():
        # The engine adds EOS itself.
        tokens = [[[names["source"][id_] for id_ in row[:-1]] for row in rows] for rows in batches]
        tasks[name] = partial(translate, tokens)
    serve(tasks, ["ctranslate2"])


if __name__ == "__main__":
    main()
