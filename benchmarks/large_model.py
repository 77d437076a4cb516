"""Memory and time of a model of 600 million parameters: imported, ranked, pruned by score.

    python benchmarks/large_model.py FOLDER [--small]

FOLDER gets a checkpoint of NLLB-200-distilled-600M's shape with random weights in float16, and the
runs that are made of it; delete it afterwards (about 8 GB). Every stage is a process of its own, so
that its peak is its own. Prints a line for each: seconds, those of the CPU, peak of resident
memory, and that peak as a multiple of the weights in float32. With `--small` the model has 220
million parameters: enough to see where a copy of the weights is.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from headcount.data.builtin import generate

SENTENCES = 50
LANGUAGES = ("eng_Latn", "fra_Latn")
SHAPE = {
    "vocab_size": 256206,
    "d_model": 1024,
    "encoder_layers": 12,
    "decoder_layers": 12,
    "encoder_attention_heads": 16,
    "decoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096,
    "max_position_embeddings": 1024,
}
SMALL = {"vocab_size": 100000, "encoder_layers": 4, "decoder_layers": 4}


def main() -> None:
    """Make the checkpoint where it is missing, then time the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--small", action="store_true", help="220 million parameters")
    options = parser.parse_args()
    folder: Path = options.folder
    text = write_text(folder / "text")
    model = folder / "model"
    if not (model / "config.json").exists():
        shape = json.dumps(SHAPE | (SMALL if options.small else {}))
        subprocess.run([sys.executable, __file__, "--make", str(model), shape], check=True)
    run, pruned = folder / "run", folder / "pruned"
    source, target = LANGUAGES
    languages = ["--source-language", source, "--target-language", target]
    sentences = ["--src", str(text / f"test.{source}"), "--ref", str(text / f"test.{target}")]
    stages = {
        "import": ["import", str(model), "--out", str(run), *languages],
        "rank by confidence": ["rank", str(run), *sentences, "--by", "confidence"],
        "rank by gradient": ["rank", str(run), *sentences, "--by", "gradient"],
        "prune by score": [
            *["prune", str(run), "--train", str(text), "--out", str(pruned), "--by", "gradient"],
            *["--keep", "48", "--no-finetune"],
        ],
    }
    for name, arguments in stages.items():
        seconds, work, peak = measured([sys.executable, "-m", "headcount", *arguments, "--quiet"])
        weights = 4 * parameters(run)
        print(
            json.dumps(
                {
                    "stage": name,
                    "seconds": round(seconds, 1),
                    "cpu_seconds": round(work, 1),
                    "peak_gb": round(peak / 1e9, 2),
                    "times_float32_weights": round(peak / weights, 2),
                    "weights_gb": round(weights / 1e9, 2),
                }
            ),
            flush=True,
        )


def write_text(folder: Path) -> Path:
    """Parallel text of the built-in corpus as a corpus folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(sentence.text, translation) for sentence, translation in generate(400)]
    parts = {"test": pairs[:SENTENCES], "dev": pairs[100:150], "train": pairs[150:]}
    for part, chosen in parts.items():
        for side, language in enumerate(LANGUAGES):
            lines = "".join(f"{pair[side]}\n" for pair in chosen)
            (folder / f"{part}.{language}").write_text(lines, encoding="utf-8")
    return folder


def make_checkpoint(folder: Path, shape: dict[str, int]) -> None:
    """A model with random weights and a small tokeniser, as NLLB-200 is stored."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    special = ["<s>", "<pad>", "</s>", "<unk>"]
    core = Tokenizer(models.BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=special, show_progress=False)
    lines = [line for sentence, other in generate(400) for line in (sentence.text, other)]
    core.train_from_iterator(lines, trainer)
    bpe = json.loads(core.to_str())["model"]
    merges = [tuple(merge) for merge in bpe["merges"]]
    tokenizer = transformers.NllbTokenizer(vocab=bpe["vocab"], merges=merges)
    torch.manual_seed(1)
    config = transformers.M2M100Config(**shape)
    model = transformers.M2M100ForConditionalGeneration(config).half()
    model.generation_config = transformers.GenerationConfig(
        num_beams=1,
        max_length=24,
        decoder_start_token_id=2,
        pad_token_id=1,
        eos_token_id=2,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def measured(command: list[str]) -> tuple[float, float, int]:
    """Seconds, those of the CPU, and the peak of resident memory, in bytes, of a command."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status):
        sys.exit(f"failed: {' '.join(command)}")
    work = usage.ru_utime + usage.ru_stime
    return time.perf_counter() - start, work, usage.ru_maxrss * 1024


def parameters(run: Path) -> int:
    """How many parameters a run has, from the header of its weights."""
    from safetensors import safe_open

    total = 0
    opened: Any
    with safe_open(run / "model.safetensors", "pt") as opened:
        for name in opened.keys():  # noqa: SIM118
            size = 1
            for length in opened.get_slice(name).get_shape():
                size *= length
            total += size
    return total


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make_checkpoint(Path(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
