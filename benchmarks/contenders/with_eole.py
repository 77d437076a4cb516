"""eole, OpenNMT-py's successor: its model, loss, optimiser and training loop.

    with_eole.py train FOLDER

The weights are headcount's, so that both compute the same function: heads' projections are cut
apart and positions are replaced. Of its dropouts those stay that headcount has too (embeddings and
the output of every block), and the entropy of attention is not logged: both in eole's favour.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyonmttok
import torch
from safetensors.torch import load_file
from serving import Task, serve
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of kernels for GPUs that are not there
    from eole.config.models import TransformerModelConfig
    from eole.config.training import TrainingConfig
    from eole.constants import DefaultTokens
    from eole.models.model import EncoderDecoderModel
    from eole.modules.multi_headed_attn import MultiHeadedAttention
    from eole.modules.transformer_mlp import MLP
    from eole.trainer import Trainer, TrainerConfig
    from eole.utils.loss import LossCompute
    from eole.utils.optimizers import Optimizer

PAD, START = 0, 2
SPECIAL = {  # in the order of headcount's ids
    "pad_token": DefaultTokens.PAD,
    "unk_token": DefaultTokens.UNK,
    "bos_token": DefaultTokens.BOS,
    "eos_token": DefaultTokens.EOS,
}


def main() -> None:
    task, folder = sys.argv[1], Path(sys.argv[2])
    if task != "train":
        sys.exit(f"No task {task}: eole takes part in training only.")
    shape = json.loads((folder / "shape.json").read_text())
    weights = load_file(folder / "weights.safetensors")
    serve(_training(folder, shape, weights), ["eole", "torch"])


def _training(folder: Path, shape: dict[str, Any], weights: dict[str, Tensor]) -> dict[str, Task]:
    config = _config(shape)
    sizes = {"src": shape["source_size"], "tgt": shape["target_size"]}
    vocabularies = {side: _vocabulary(size) for side, size in sizes.items()}
    vocabularies["specials"] = SPECIAL
    model = EncoderDecoderModel.for_training(
        config.model, vocabularies, config.training, device_id=-1
    )
    for module in model.modules():
        if isinstance(module, MLP):
            module.dropout_1.p = 0.0  # between the layers, where headcount has none
    _load(model, weights)
    _check_size(model, weights)
    criterion = LossCompute.from_config(config, model, vocabularies)
    trainer = _trainer(model, criterion, config)
    tensors = load_file(folder / "batches.safetensors")
    batches = [
        _batch(tensors[f"{number}.source"], tensors[f"{number}.target"])
        for number in range(len(tensors) // 2)
    ]

    def loss() -> dict[str, Any]:
        model.eval()
        chosen = batches[0]
        labels = chosen["tgt"][:, 1:].flatten()
        with torch.no_grad():
            states, _, _ = model(chosen["src"], chosen["tgt"], chosen["srclen"])
            scores = model.generator(states.flatten(0, 1))
            loss = nn.functional.cross_entropy(scores, labels, ignore_index=PAD)
        model.train()
        return {"loss": float(loss)}

    def steps() -> dict[str, Any]:
        """One call of eole's training loop, which sees each batch once."""
        stream = ((batch, 0) for batch in batches)
        stats = trainer.train(stream, train_steps=0, save_checkpoint_steps=0)
        return {"source_tokens": int(stats.n_src_tokens), "training_loss": stats.xent()}

    return {"loss": loss, "steps": steps}


def _config(shape: dict[str, Any]) -> SimpleNamespace:
    """The parts of eole's configuration that model, loss and optimiser ask for."""
    if shape["norm"] != "pre":
        sys.exit("eole's decoder has layer norms before its blocks only.")
    layers = {
        "hidden_size": shape["width"],
        "heads": shape["heads"],
        "transformer_ff": shape["ff_width"],
        "mlp_activation_fn": "relu",
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "position_encoding_type": "SinusoidalInterleaved",
    }
    model = TransformerModelConfig(
        **layers,
        embeddings={
            "word_vec_size": shape["width"],
            "src_word_vec_size": shape["width"],
            "tgt_word_vec_size": shape["width"],
            "position_encoding_type": "SinusoidalInterleaved",
        },
        encoder=layers | {"layers": shape["encoder_layers"]},
        decoder=layers | {"layers": shape["decoder_layers"]},
        share_decoder_embeddings=True,
        generator_bias=False,
    )
    first, second = shape["adam_betas"]
    training = TrainingConfig(
        optim="adam",
        adam_beta1=first,
        adam_beta2=second,
        learning_rate=shape["learning_rate"],
        max_grad_norm=shape["clip_norm"],
        dropout=[shape["dropout"]],
        attention_dropout=[0.0],
        label_smoothing=shape["label_smoothing"],
        normalization="tokens",
        log_attention_entropy=False,
    )
    return SimpleNamespace(model=model, training=training)


def _vocabulary(size: int) -> pyonmttok.Vocab:
    vocabulary = pyonmttok.Vocab(list(SPECIAL.values()))
    for number in range(len(SPECIAL), size):
        vocabulary.add_token(str(number))
    return vocabulary


def _trainer(
    model: EncoderDecoderModel, criterion: LossCompute, config: SimpleNamespace
) -> Trainer:
    chosen = config.training
    return Trainer(
        model=model,
        train_loss=criterion,
        valid_loss=criterion,
        scoring_preparator=SimpleNamespace(transforms={}),  # for validation, which there is none
        valid_scorers={},
        optim=Optimizer.from_config(model, config),
        config=TrainerConfig(
            norm_method=chosen.normalization,
            n_gpu=0,
            gpu_rank=-1,
            dropout=chosen.dropout,
            attention_dropout=chosen.attention_dropout,
        ),
    )


def _batch(source: Tensor, target: Tensor) -> dict[str, Any]:
    """What eole's data loader gives."""
    return {
        "src": source,
        "srclen": (source != PAD).sum(1),
        "tgt": torch.cat([target.new_full((len(target), 1), START), target], 1),
        "images": None,
        "prefix_len": None,
        "cid": ["corpus"] * len(source),
        "cid_line_number": list(range(len(source))),
    }


@torch.no_grad()
def _load(model: EncoderDecoderModel, weights: dict[str, Tensor]) -> None:
    def linear(theirs: nn.Module, prefix: str) -> None:
        theirs.weight.copy_(weights[f"{prefix}weight"])
        theirs.bias.copy_(weights[f"{prefix}bias"])

    def attention(theirs: MultiHeadedAttention, norm: nn.Module, prefix: str) -> None:
        stacked = zip(
            (theirs.linear_query, theirs.linear_keys, theirs.linear_values),
            weights[f"{prefix}attention.in_weight"].chunk(3),
            weights[f"{prefix}attention.in_bias"].chunk(3),
            strict=True,
        )
        for projection, weight, bias in stacked:
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        linear(theirs.final_linear, f"{prefix}attention.out_")
        linear(norm, f"{prefix}norm.")

    def feed_forward(theirs: MLP, norm: nn.Module, prefix: str) -> None:
        linear(theirs.gate_up_proj, f"{prefix}expand.")
        linear(theirs.down_proj, f"{prefix}contract.")
        linear(norm, f"{prefix}norm.")

    for number, layer in enumerate(model.encoder.transformer_layers):
        prefix = f"encoder.{number}."
        attention(layer.self_attn, layer.input_layernorm, f"{prefix}self_attention.")
        feed_forward(layer.mlp, layer.post_attention_layernorm, f"{prefix}feed_forward.")
    for number, layer in enumerate(model.decoder.transformer_layers):
        prefix = f"decoder.{number}."
        attention(layer.self_attn, layer.input_layernorm, f"{prefix}self_attention.")
        attention(layer.context_attn, layer.precontext_layernorm, f"{prefix}cross_attention.")
        feed_forward(layer.mlp, layer.post_attention_layernorm, f"{prefix}feed_forward.")
    for name, side in (("encoder", model.encoder), ("decoder", model.decoder)):
        linear(side.layer_norm, f"{name}_norm.")
    for name, side in (("source", model.src_emb), ("target", model.tgt_emb)):
        side.embeddings.weight.copy_(weights[f"{name}_embedding.table.weight"])
        side.pe.pe = weights["positions"][:, None].clone()


def _check_size(model: EncoderDecoderModel, weights: dict[str, Tensor]) -> None:
    theirs = sum(parameter.numel() for parameter in model.parameters())
    repeated = {"positions", "output_weight"}  # the output layer is the target's embedding
    own = sum(tensor.numel() for name, tensor in weights.items() if name not in repeated)
    if theirs != own:
        sys.exit(f"eole's model has {theirs} parameters, headcount's {own}.")


if __name__ == "__main__":
    main()
