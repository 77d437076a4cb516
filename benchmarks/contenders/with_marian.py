"""Hugging Face transformers: MarianMT in a plain training loop, and its `generate`.

    with_marian.py train|translate FOLDER

Training: the architecture of `shape.json` with weights of its own (MarianMT is post-norm only).
Translation: the MarianMT model that headcount exported into `FOLDER/marian`.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from serving import Task, serve
from torch import nn
from torch.nn import functional as F
from transformers import MarianConfig, MarianMTModel

PAD, START, EOS = 0, 2, 3


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    tasks = _training(folder) if task == "train" else _translation(folder)
    serve(tasks, ["transformers", "torch"])


def _training(folder: Path) -> dict[str, Task]:
    shape = json.loads((folder / "shape.json").read_text())
    tensors = load_file(folder / "batches.safetensors")
    torch.manual_seed(1)
    model = MarianMTModel(
        MarianConfig(
            vocab_size=shape["source_size"],
            decoder_vocab_size=shape["target_size"],
            share_encoder_decoder_embeddings=False,
            tie_word_embeddings=True,
            d_model=shape["width"],
            encoder_layers=shape["encoder_layers"],
            decoder_layers=shape["decoder_layers"],
            encoder_attention_heads=shape["heads"],
            decoder_attention_heads=shape["heads"],
            encoder_ffn_dim=shape["ff_width"],
            decoder_ffn_dim=shape["ff_width"],
            activation_function="relu",
            dropout=shape["dropout"],
            attention_dropout=0.0,
            activation_dropout=0.0,
            scale_embedding=True,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=START,
        )
    )
    optimiser = torch.optim.Adam(
        model.parameters(), lr=shape["learning_rate"], betas=tuple(shape["adam_betas"])
    )

    def steps() -> dict[str, Any]:
        tokens = 0
        model.train()
        for number in range(len(tensors) // 2):
            source, labels = tensors[f"{number}.source"], tensors[f"{number}.target"]
            start = labels.new_full((len(labels), 1), START)
            inputs = torch.cat([start, labels[:, :-1]], 1)
            optimiser.zero_grad()
            real = source != PAD
            logits = model(
                input_ids=source, attention_mask=real, decoder_input_ids=inputs, use_cache=False
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                labels.flatten(),
                ignore_index=PAD,
                label_smoothing=shape["label_smoothing"],
            )
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), shape["clip_norm"])
            optimiser.step()
            tokens += int(real.sum())
        return {"source_tokens": tokens}

    return {"steps": steps}


def _translation(folder: Path) -> dict[str, Task]:
    work = json.loads((folder / "sentences.json").read_text())
    model = MarianMTModel.from_pretrained(folder / "marian", dtype=torch.float32).eval()

    @torch.inference_mode()
    def translate(batches: list[list[list[int]]]) -> dict[str, Any]:
        outputs = []
        for rows in batches:
            longest = max(map(len, rows))
            ids = torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])
            outputs = model.generate(
                input_ids=ids,
                attention_mask=ids != PAD,
                num_beams=work["beam"],
                length_penalty=1.0,
                early_stopping=False,
                max_new_tokens=work["longest"],
            )
            for row in outputs.tolist():
                tokens = row[1:]
                cut = tokens.index(EOS) if EOS in tokens else len(tokens)
                outputs.append(tokens[:cut])
        return {"outputs": outputs}

    return {name: partial(translate, batches) for name, batches in work["tasks"].items()}


if __name__ == "__main__":
    main()
