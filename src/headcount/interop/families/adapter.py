"""What headcount has to know about a family of models, for import and export: one adapter each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from headcount.config import ModelConfig
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.interop.checking import Sample
from headcount.run import Run

Find = Callable[[str], Path | None]
State = Mapping[str, Tensor]

SOURCE, TARGET = "source_embedding.table.weight", "target_embedding.table.weight"
OUTPUT, OUTPUT_BIAS = "output_weight", "output_bias"

MASKED, CLASSIFIES = "ForMaskedLM", "ForSequenceClassification"
"""How classes of encoders with a head end."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "swish": "swish",
    "silu": "swish",
}


@dataclass(frozen=True)
class Checkpoint:
    """A model of `transformers` before its weights are read.

    `config` is its configuration as `transformers` has it; `find` gives the path of one of its
    files by name, or None.
    """

    name: str
    config: Any
    find: Find


@dataclass(frozen=True)
class Languages:
    """What the user says about languages, and text that goes in front of every source sentence."""

    source: str | None = None
    target: str | None = None
    prefix: str = ""


@dataclass(frozen=True)
class Tokenizers:
    """Both tokenisers of a model, its languages, and the tokens that every output begins with."""

    source: Tokenizer
    target: Tokenizer
    languages: tuple[str, str]
    first_tokens: tuple[int, ...] = ()
    notes: list[str] = field(default_factory=list)


class Written(NamedTuple):
    """The configuration of a run for `transformers`, and notes on what it cannot say."""

    settings: dict[str, Any]
    notes: list[str]


class Adapter:
    """Settings, names of weights and tokenisers of a family; a subclass for each."""

    config_class: ClassVar[str]
    model_class: ClassVar[str]
    one_width: ClassVar[bool] = False
    """Whether feed-forward networks of encoder and decoder have the same width."""

    def refuse(self, checkpoint: Checkpoint) -> None:
        """Raise a `UserError` for variants that this package does not have."""

    def model_settings(self, config: Any) -> dict[str, Any]:
        """The `ModelConfig` of a configuration; which matrices are tied is seen in the weights."""
        raise NotImplementedError

    def class_for(self, checkpoint: Checkpoint) -> str:
        """The class of `transformers` that loads a checkpoint."""
        return self.model_class

    def load_options(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Further arguments for that class."""
        return {}

    def logits(self, theirs: Any, sample: Sample, pad: int) -> Tensor:
        """What transformers' own model gives, `[tokens, vocabulary]`, of all real target tokens."""
        logits: Tensor = theirs(
            input_ids=sample.source,
            attention_mask=(sample.source != pad).long(),
            decoder_input_ids=sample.target,
            use_cache=False,
        ).logits
        return logits[sample.real]

    def names(self, own: str, config: ModelConfig) -> tuple[str, ...]:
        """What one of our parameters is called there; several names are its parts, in order."""
        raise NotImplementedError

    def join(self, own: str, parts: list[Tensor], theirs: Any) -> Tensor:
        """Our parameter from theirs; `theirs` is their configuration."""
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def split(self, own: str, tensor: Tensor, config: ModelConfig) -> tuple[Tensor, ...]:
        """Their parameters from ours: the inverse of `join`."""
        return tensor.chunk(len(self.names(own, config)))

    def tokenizers(self, checkpoint: Checkpoint, languages: Languages) -> Tokenizers:
        """The tokenisers of a checkpoint."""
        raise NotImplementedError

    def prepare(self, theirs: Any, config: ModelConfig) -> None:
        """Make a new model of `transformers` ready to take the weights of a run."""

    def settings(self, run: Run) -> Written:
        """The configuration of a run for `transformers`."""
        raise NotImplementedError

    def write_tokenizers(self, run: Run, folder: Path) -> list[str]:
        """Write the run's tokenisers into an export; notes on what could not be written."""
        raise NotImplementedError


def activation_of(name: str) -> str:
    """The name here of an activation function there."""
    if name not in ACTIVATIONS:
        raise UserError(
            f"The activation {name!r} is not supported.",
            f"Supported: {', '.join(sorted(ACTIVATIONS))}.",
        )
    return ACTIVATIONS[name]


def activation_name(config: ModelConfig) -> str:
    """The name there of a model's activation function."""
    return {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation)


def tie_of(state: State, adapter: Adapter, config: ModelConfig) -> str:
    """Which of the three vocabulary matrices of a model are one."""
    if not config.decoder_layers:
        return "all"
    source, target, output = (
        state[adapter.names(own, config)[0]] for own in (SOURCE, TARGET, OUTPUT)
    )
    return {(True, True): "all", (True, False): "inputs", (False, True): "target"}.get(
        (_same(source, target), _same(target, output)), "none"
    )


def from_theirs(
    state: State, own: list[str], adapter: Adapter, config: ModelConfig, theirs: Any
) -> State:
    """The parameters of our model, by the names in `own`, from those of `transformers`."""
    return {
        name: adapter.join(name, [state[their] for their in adapter.names(name, config)], theirs)
        for name in own
    }


def to_theirs(state: State, adapter: Adapter, config: ModelConfig) -> dict[str, Tensor]:
    """The parameters of `transformers` from those of our model with all of its heads."""
    theirs: dict[str, Tensor] = {}
    for own, tensor in state.items():
        parts = adapter.split(own, tensor.detach(), config)
        theirs.update(zip(adapter.names(own, config), parts, strict=True))
    return theirs


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    return one.data_ptr() == other.data_ptr() or bool(torch.equal(one, other))
