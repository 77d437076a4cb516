"""BERT-like encoders: learned positions, normed embeddings, post-norm, no decoder.

Where a checkpoint has a masked-language head, or one that classifies sentences, it is imported too.
A sentence is always segment A, so that its token type is part of every position.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.interop.checking import Sample
from headcount.interop.families.adapter import (
    CLASSIFIES,
    MASKED,
    Adapter,
    Checkpoint,
    Languages,
    Tokenizers,
    Written,
    activation_name,
    activation_of,
)
from headcount.interop.families.tokenizers import (
    content_of,
    frame,
    load_tokenizer,
    make_tokenizer,
    write_fast_tokenizer,
)
from headcount.run import Run


class Bert(Adapter):
    """`BertModel`, `BertForMaskedLM` and `BertForSequenceClassification`."""

    config_class, model_class = "BertConfig", "BertForMaskedLM"
    base_class: ClassVar[str] = "BertModel"
    base: ClassVar[str] = "bert."
    head: ClassVar[dict[str, str]] = {
        "linear": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "weight": "cls.predictions.decoder.weight",
    }
    classifier: ClassVar[dict[str, str]] = {
        "linear": "bert.pooler.dense",
        "bias": "classifier.bias",
        "weight": "classifier.weight",
    }
    class_activation: ClassVar[str] = "tanh"
    first_position: ClassVar[int] = 0
    token_types: ClassVar[bool] = True
    setting_names: ClassVar[dict[str, str]] = {
        "encoder_layers": "num_hidden_layers",
        "heads": "num_attention_heads",
        "width": "hidden_size",
        "ff_width": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
    }
    activation: ClassVar[str] = "hidden_act"
    stack: ClassVar[str] = "encoder.layer"
    parts: ClassVar[dict[str, tuple[str, ...]]] = {
        "in": ("attention.self.query", "attention.self.key", "attention.self.value"),
        "out": ("attention.output.dense",),
        "attention norm": ("attention.output.LayerNorm",),
        "expand": ("intermediate.dense",),
        "contract": ("output.dense",),
        "norm": ("output.LayerNorm",),
    }
    """Our parts of a layer, and their names for them."""

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Refuse BERT models that are decoders, and relative positions."""
        config, name = checkpoint.config, checkpoint.name
        kind = getattr(config, "position_embedding_type", "absolute") or "absolute"
        if kind != "absolute":
            raise UserError(f"{name} has positions of the kind '{kind}'.", "Only absolute ones.")
        if self.class_for(checkpoint).endswith(CLASSIFIES) and len(config.id2label) < 2:
            raise UserError(
                f"{name} has one output: it gives a number, not a class.",
                "Only masked-language models and classifiers are supported.",
            )
        if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
            raise UserError(f"{name} is a decoder, not an encoder.", "Only encoders are supported.")

    def class_for(self, checkpoint: Checkpoint) -> str:
        """With its head where the checkpoint says that it has one."""
        named = checkpoint.config.architectures or []
        if any(name.endswith((MASKED, "ForPreTraining")) for name in named):
            return self.model_class
        classifies = any(name.endswith(CLASSIFIES) for name in named)
        return self.model_class.replace(MASKED, CLASSIFIES) if classifies else self.base_class

    def load_options(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Without a head, the pooler is not used, and is often missing."""
        return {"add_pooling_layer": False} if self.class_for(checkpoint) == self.base_class else {}

    def model_settings(self, config: Any) -> dict[str, Any]:
        """An encoder of post-norm layers."""
        return {
            "norm_epsilon": 1e-12,  # unless it is among the settings
            **{own: getattr(config, theirs) for own, theirs in self.setting_names.items()},
            "decoder_layers": 0,
            "activation": activation_of(getattr(config, self.activation)),
            "norm": "post",
            "embedding_scale": False,
            "embedding_norm": True,
            "positions": "learned",
            "max_positions": config.max_position_embeddings - self.first_position,
            "tie": "all",
            "class_activation": self.class_activation,
        }

    def names(self, own: str, config: ModelConfig) -> tuple[str, ...]:
        """`bert.encoder.layer.0.attention.self.query.weight` and its like."""
        head = self.classifier if config.classes else self.head
        base = self.base if config.predicts else ""
        match own.replace("target_embedding", "source_embedding").split("."):
            case ["source_embedding", "table", "weight"]:
                return (f"{base}embeddings.word_embeddings.weight",)
            case ["output_weight"] if not config.predicts:
                return (f"{base}embeddings.word_embeddings.weight",)
            case ["source_embedding", "positions"]:
                kinds = ("position_embeddings", "token_type_embeddings")[: 1 + self.token_types]
                return tuple(f"{base}embeddings.{kind}.weight" for kind in kinds)
            case ["source_embedding", "norm", kind]:
                return (f"{base}embeddings.LayerNorm.{kind}",)
            case ["output_weight"]:
                return (head["weight"],)
            case ["output_bias"]:
                return (head["bias"],)
            case ["output_network", part, kind]:
                return (f"{head[part]}.{kind}",)
            case ["encoder", layer, *rest]:
                return self.layer_names(f"{base}{self.stack}.{layer}", rest)
        raise ValueError(f"no such parameter: {own}")

    def layer_names(self, layer: str, rest: list[str]) -> tuple[str, ...]:
        """The names of a layer's parameters."""
        match rest:
            case ["self_attention", "attention", name]:
                part, _, kind = name.partition("_")
            case ["self_attention", "norm", kind]:
                part = "attention norm"
            case ["feed_forward", part, kind]:
                pass
            case _:
                raise ValueError(f"no such parameter of a layer: {rest}")
        return tuple(f"{layer}.{theirs}.{kind}" for theirs in self.parts[part])

    def join(self, own: str, parts: list[Tensor], theirs: Any) -> Tensor:
        """The token type of segment A is part of every position."""
        if not own.endswith("_embedding.positions"):
            return super().join(own, parts, theirs)
        positions = parts[0][self.first_position :]
        return positions + parts[1][0] if len(parts) > 1 else positions

    def split(self, own: str, tensor: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
        """The inverse of `join`, with a token type of zeros."""
        if not own.endswith("_embedding.positions"):
            return super().split(own, tensor, config)
        unused = tensor.new_zeros(self.first_position, config.width)
        types = tensor.new_zeros(1, config.width)
        return (torch.cat([unused, tensor]), types)[: len(self.names(own, config))]

    def logits(self, theirs: Any, sample: Sample, pad: int) -> Tensor:
        """Logits of classes or of all real tokens, or else the encoder's output."""
        real = sample.source != pad
        outputs = theirs(input_ids=sample.source, attention_mask=real.long())
        tensor: Tensor = outputs.logits if hasattr(outputs, "logits") else outputs.last_hidden_state
        return tensor[real] if tensor.dim() == 3 else tensor

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """`[CLS]` before and `[SEP]` after every sentence."""
        theirs = load_tokenizer(checkpoint)
        before, after = frame(theirs)
        content = content_of(checkpoint, theirs)
        start = before[0] if before else after[-1]
        side = make_tokenizer(content, theirs, checkpoint, before, after, start)
        language = languages.source or "text"
        return Tokenizers(side, side, (language, language))

    def settings(self, run: Run) -> Written:
        """The arguments of the configuration class."""
        config, source = run.config.model, run.source_tokenizer
        settings = {
            **{theirs: getattr(config, own) for own, theirs in self.setting_names.items()},
            "vocab_size": source.size,
            self.activation: activation_name(config),
            "max_position_embeddings": config.max_positions + self.first_position,
            "pad_token_id": source.pad,
            "bos_token_id": source.start,
            "eos_token_id": source.eos,
        }
        name = self.model_class if config.output_network else self.base_class
        if config.classes:
            name = self.model_class.replace(MASKED, CLASSIFIES)
            settings["id2label"] = dict(enumerate(config.classes))
            settings["label2id"] = {label: i for i, label in enumerate(config.classes)}
        settings["architectures"] = [name]
        if not self.token_types:
            return Written(settings, [])
        remark = "the token type of a second segment is not kept"
        return Written({**settings, "type_vocab_size": 1}, [remark])

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """A fast tokeniser."""
        return write_fast_tokenizer(run, folder)


class Roberta(Bert):
    """`RobertaModel` and `RobertaForMaskedLM`: positions are counted from 2."""

    config_class, model_class = "RobertaConfig", "RobertaForMaskedLM"
    base_class, base = "RobertaModel", "roberta."
    head: ClassVar[dict[str, str]] = {
        "linear": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "bias": "lm_head.bias",
        "weight": "lm_head.decoder.weight",
    }
    classifier: ClassVar[dict[str, str]] = {
        "linear": "classifier.dense",
        "bias": "classifier.out_proj.bias",
        "weight": "classifier.out_proj.weight",
    }
    first_position = 2

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Padding has the number 1 in all of them."""
        super().refuse(checkpoint)
        if checkpoint.config.pad_token_id != self.first_position - 1:
            raise UserError(
                f"{checkpoint.name} has padding {checkpoint.config.pad_token_id} instead of 1.",
                "RoBERTa counts its positions from there; such a model is not supported.",
            )


class XlmRoberta(Roberta):
    """`XLMRobertaModel` and `XLMRobertaForMaskedLM`."""

    config_class, model_class = "XLMRobertaConfig", "XLMRobertaForMaskedLM"
    base_class = "XLMRobertaModel"


class DistilBert(Bert):
    """`DistilBertModel` and `DistilBertForMaskedLM`: no token types."""

    config_class, model_class = "DistilBertConfig", "DistilBertForMaskedLM"
    base_class, base = "DistilBertModel", "distilbert."
    head: ClassVar[dict[str, str]] = {
        "linear": "vocab_transform",
        "norm": "vocab_layer_norm",
        "bias": "vocab_projector.bias",
        "weight": "vocab_projector.weight",
    }
    classifier: ClassVar[dict[str, str]] = {
        "linear": "pre_classifier",
        "bias": "classifier.bias",
        "weight": "classifier.weight",
    }
    class_activation = "relu"
    token_types = False
    setting_names: ClassVar[dict[str, str]] = {
        "encoder_layers": "n_layers",
        "heads": "n_heads",
        "width": "dim",
        "ff_width": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    }
    activation, stack = "activation", "transformer.layer"
    parts: ClassVar[dict[str, tuple[str, ...]]] = {
        "in": ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        "out": ("attention.out_lin",),
        "attention norm": ("sa_layer_norm",),
        "expand": ("ffn.lin1",),
        "contract": ("ffn.lin2",),
        "norm": ("output_layer_norm",),
    }

    def load_options(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """There is no pooler."""
        return {}
