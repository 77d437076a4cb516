"""JoeyNMT: its model, loss, optimiser and beam search, on token ids and weights given in files.

    with_joeynmt.py train|translate FOLDER

The weights are headcount's, so that both compute the same function: heads' projections are cut
apart, positions and the epsilon of layer norms are replaced. Of its dropouts those stay that
headcount has too (embeddings and the output of every block), which is in JoeyNMT's favour.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from joeynmt.batch import Batch
from joeynmt.builders import build_gradient_clipper, build_optimizer
from joeynmt.model import Model, build_model
from joeynmt.search import search
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary
from safetensors.torch import load_file
from serving import Task, serve
from torch import Tensor, nn

UNK, PAD, BOS, EOS = 0, 1, 2, 3  # fixed in JoeyNMT; headcount's are 1, 0, 2, 3


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(int(torch.get_num_threads()))
    shape = json.loads((folder / "shape.json").read_text())
    model = make_model(shape, load_file(folder / "weights.safetensors"))
    tasks = _training(model, folder, shape) if task == "train" else _translation(model, folder)
    serve(tasks, ["joeynmt", "torch"])


def make_model(shape: dict[str, Any], weights: dict[str, Tensor]) -> Model:
    """JoeyNMT's Transformer with headcount's weights."""
    layers = {
        "type": "transformer",
        "hidden_size": shape["width"],
        "ff_size": shape["ff_width"],
        "num_heads": shape["heads"],
        "dropout": shape["dropout"],
        "layer_norm": shape["norm"],
        "embeddings": {
            "embedding_dim": shape["width"],
            "scale": True,
            "dropout": shape["dropout"],
        },
    }
    config = {
        "encoder": layers | {"num_layers": shape["encoder_layers"]},
        "decoder": layers | {"num_layers": shape["decoder_layers"]},
        "tied_softmax": True,
        "tied_embeddings": False,
    }
    vocabularies = [_vocabulary(shape[side]) for side in ("source_size", "target_size")]
    model = build_model(config, *vocabularies)
    model.loss_function = ("crossentropy", shape["label_smoothing"])
    _same_dropout(model)
    _load(model, weights, shape["norm"] == "pre")
    return model


def _vocabulary(size: int) -> Vocabulary:
    special = {"unk": UNK, "pad": PAD, "bos": BOS, "eos": EOS}
    settings = {f"{name}_token": f"<{name}>" for name in special}
    settings |= {f"{name}_id": number for name, number in special.items()}
    vocabulary = Vocabulary(
        [], SimpleNamespace(**settings, sep_token=None, sep_id=None, lang_tags=[])
    )
    # `add_tokens` searches a list for each of them, which takes minutes.
    rest = [str(number) for number in range(len(special), size)]
    vocabulary._itos.extend(rest)
    vocabulary._stoi.update({token: number for number, token in enumerate(rest, len(special))})
    return vocabulary


def _same_dropout(model: Model) -> None:
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
        if isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-5


@torch.no_grad()
def _load(model: Model, weights: dict[str, Tensor], pre_norm: bool) -> None:
    def linear(theirs: nn.Linear, prefix: str) -> None:
        theirs.weight.copy_(weights[f"{prefix}weight"])
        theirs.bias.copy_(weights[f"{prefix}bias"])

    def attention(theirs: MultiHeadedAttention, prefix: str) -> None:
        stacked = zip(
            (theirs.q_layer, theirs.k_layer, theirs.v_layer),
            weights[f"{prefix}attention.in_weight"].chunk(3),
            weights[f"{prefix}attention.in_bias"].chunk(3),
            strict=True,
        )
        for projection, weight, bias in stacked:
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        linear(theirs.output_layer, f"{prefix}attention.out_")

    def feed_forward(theirs: PositionwiseFeedForward, prefix: str) -> None:
        linear(theirs.pwff_layer[0], f"{prefix}expand.")
        linear(theirs.pwff_layer[3], f"{prefix}contract.")
        linear(theirs.layer_norm, f"{prefix}norm.")

    for number, layer in enumerate(model.encoder.layers):
        attention(layer.src_src_att, f"encoder.{number}.self_attention.")
        linear(layer.layer_norm, f"encoder.{number}.self_attention.norm.")
        feed_forward(layer.feed_forward, f"encoder.{number}.feed_forward.")
    for number, layer in enumerate(model.decoder.layers):
        attention(layer.trg_trg_att, f"decoder.{number}.self_attention.")
        linear(layer.x_layer_norm, f"decoder.{number}.self_attention.norm.")
        attention(layer.src_trg_att, f"decoder.{number}.cross_attention.")
        linear(layer.dec_layer_norm, f"decoder.{number}.cross_attention.norm.")
        feed_forward(layer.feed_forward, f"decoder.{number}.feed_forward.")
    if pre_norm:
        linear(model.encoder.layer_norm, "encoder_norm.")
        linear(model.decoder.layer_norm, "decoder_norm.")
    # Tied to the output layer, so that the row of padding is needed too.
    for embedding, name in ((model.src_embed, "source"), (model.trg_embed, "target")):
        embedding.lut.weight.copy_(_swapped_rows(weights[f"{name}_embedding.table.weight"]))
    for side in (model.encoder, model.decoder):
        positions = weights["positions"]
        side.pe.pe = positions[None].clone()


def _swapped_rows(table: Tensor) -> Tensor:
    return table[torch.tensor([1, 0, *range(2, len(table))])]


def _swapped(ids: Tensor) -> Tensor:
    """Token ids with padding and unknown in each other's place."""
    return torch.where(ids < 2, 1 - ids, ids)


def _training(model: Model, folder: Path, shape: dict[str, Any]) -> dict[str, Task]:
    tensors = load_file(folder / "batches.safetensors")
    pairs = [
        (_swapped(tensors[f"{number}.source"]), _swapped(tensors[f"{number}.target"]))
        for number in range(len(tensors) // 2)
    ]
    betas, rate = shape["adam_betas"], shape["learning_rate"]
    optimiser = build_optimizer(
        {"optimizer": "adam", "learning_rate": rate, "adam_betas": betas}, model.parameters()
    )
    clip = build_gradient_clipper({"clip_grad_val": None, "clip_grad_norm": shape["clip_norm"]})

    def batch(source: Tensor, target: Tensor) -> Batch:
        lengths = (source != PAD).sum(1)
        with_start = torch.cat([target.new_full((len(target), 1), BOS), target], 1)
        rows = torch.arange(len(source))
        device = torch.device("cpu")
        return Batch(source, lengths, None, with_start, None, rows, device, PAD, EOS)

    def loss() -> dict[str, Any]:
        model.eval()
        chosen = batch(*pairs[0])
        with torch.no_grad():
            _, log_probabilities, _, _ = model(return_type="loss", **vars(chosen))
        labels = chosen.trg[:, :, None]
        nll = -log_probabilities.gather(2, labels)[labels != PAD].sum()
        return {"loss": float(nll / chosen.ntokens)}

    def steps() -> dict[str, Any]:
        """As `TrainManager` does it, without its logging."""
        tokens = 0
        for source, target in pairs:
            chosen = batch(source, target)
            model.train()
            chosen.sort_by_src_length()
            total, _, _, correct = model(return_type="loss", **vars(chosen))
            mean = chosen.normalize(total, normalization="tokens")
            mean.backward()
            mean.item(), correct.item()
            clip(parameters=model.parameters())
            optimiser.step()
            model.zero_grad()
            tokens += int(chosen.src_length.sum())
        return {"source_tokens": tokens}

    return {"loss": loss, "steps": steps}


def _translation(model: Model, folder: Path) -> dict[str, Task]:
    model.eval()
    work = json.loads((folder / "sentences.json").read_text())

    def translate(batches: list[list[list[int]]]) -> dict[str, Any]:
        outputs = []
        for rows in batches:
            longest = max(map(len, rows))
            ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
            source = _swapped(ids)
            lengths = (source != PAD).sum(1)
            numbers = torch.arange(len(rows))
            batch = Batch(
                source, lengths, None, None, None, numbers, torch.device("cpu"), PAD, EOS, False
            )
            output, _, _ = search(
                model, batch, work["longest"], work["beam"], work["wu"], min_output_length=0
            )
            outputs.extend(_until_end(row) for row in output)
        return {"outputs": outputs}

    return {name: partial(translate, batches) for name, batches in work["tasks"].items()}


def _until_end(row: np.ndarray) -> list[int]:
    tokens = [int(token) for token in row]
    cut = next((place for place, token in enumerate(tokens) if token in (EOS, PAD)), len(tokens))
    return [1 - token if token < 2 else token for token in tokens[:cut]]


if __name__ == "__main__":
    main()
