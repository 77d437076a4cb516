"""Every setting of a run, typed and validated, in one place.

A recipe is a YAML file with the sections below; defaults are the paper's (App. B). The resolved
configuration is written into the run folder as `config.yaml`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from headcount.errors import Notice, UserError
from headcount.yaml_reading import apply_override, read_yaml, readable_error, without_removed

RUN_VERSION = 1

LARGEST = 10**12
"""The largest count of anything here; larger ones would overflow somewhere."""

REMOVED: dict[tuple[str, str], float] = {
    ("model", "word_dropout"): 0.0,
    ("model", "shortest_wavelength"): 2 * math.pi,
    ("model", "position_scale"): 1.0,
    ("training", "embedding_rate"): 1.0,
    ("training", "sharpen"): 0.0,
}
"""Settings of earlier versions that brought nothing, and their defaults, which old runs have."""

Positive = Annotated[int, Field(gt=0, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Precision = Literal["auto", "float32", "bf16"]
Share = Annotated[float, Field(ge=0, lt=1)]
Spread = Annotated[float, Field(ge=0, le=100)]


MAX_BEAM = 1000
MAX_LENGTH_PENALTY = 20.0
"""Beyond these a search takes all memory, or lengths to the power of the penalty overflow."""


class Section(BaseModel):
    """A group of settings; an unknown key is an error.

    The text below a key is its meaning, and goes into docs/recipes.md.
    """

    model_config = ConfigDict(
        allow_inf_nan=False,
        extra="forbid",
        validate_default=True,
        validate_assignment=True,
        use_attribute_docstrings=True,
    )


class CorpusPart(Section):
    """One corpus of several that are mixed."""

    name: str
    """A known corpus."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Its part of the training pairs; all corpora have one, and they add up to 1, or none has."""


class DataConfig(Section):
    """Which parallel text, and how it becomes tokens (Sec. 3, App. B.1)."""

    corpus: str | list[str | CorpusPart] | None = "tatoeba-en-fr"
    """A known corpus (`headcount data --help`), a list of them or of `name` and `share`; `null`."""
    folder: Path | None = None
    """A corpus folder of your own; it takes precedence over `corpus`."""
    source: str = "en"
    """Language to translate from, as in the names of files: `train.en`."""
    target: str = "fr"
    """Language to translate to."""
    pairs: Positive | None = None
    """With `corpus`: this many training pairs, the same ones every time; `null` for all."""
    source_vocabulary: Annotated[int, Field(ge=16)] = 32000
    """BPE tokens of the source side at most, special ones counted (App. B.1)."""
    target_vocabulary: Annotated[int, Field(ge=16)] = 32000
    """BPE tokens of the target side at most (App. B.1)."""
    max_length: Positive = 250
    """Pairs with more tokens than this on a side, or than the model has room for, are left out."""

    @field_validator("corpus", mode="before")
    @classmethod
    def _plain_mistakes(cls, value: Any) -> Any:
        """Report common mistakes before pydantic lists an error for every type."""
        if isinstance(value, str) and "," in value:
            raise ValueError("must be a list: [a, b], or with shares [{name: a, share: 0.5}, ...]")
        if value == []:
            raise ValueError("is an empty list; name a corpus, or write null beside data.folder")
        for part in value if isinstance(value, list) else ():
            if not isinstance(part, dict):
                continue
            if part.keys() - {"name", "share"} or "name" not in part:
                keys = ", ".join(str(key) for key in part) or "no keys"
                raise ValueError(f"has a part with {keys}; each has a name and may have a share")
            share = part.get("share")
            if isinstance(share, int | float) and not 0 < share <= 1:
                must = "it must be above 0 and at most 1"
                raise ValueError(f"the share of {part['name']} is {share:g}; {must}")
        return value

    @property
    def name(self) -> str:
        """What the data is called: a folder takes precedence over a known corpus."""
        if self.folder is not None:
            return self.folder.name
        return " + ".join(part.name for part in self.parts)

    @property
    def corpus_argument(self) -> str:
        """The known corpora as `headcount data` takes them."""
        return ",".join(
            part.name if part.share is None else f"{part.name}={part.share}" for part in self.parts
        )

    @property
    def parts(self) -> list[CorpusPart]:
        """The known corpora, one or several."""
        listed = [self.corpus] if isinstance(self.corpus, str) else self.corpus or []
        return [CorpusPart(name=part) if isinstance(part, str) else part for part in listed]


class ModelConfig(Section):
    """The Transformer (App. B.2). `layers` in a recipe sets both depths at once.

    The decoder has as many heads and as wide a feed-forward network as the encoder where it is
    given none of its own. `tie` says which matrices are one: none; the target embedding and the
    output layer; both embeddings ("inputs"); all three.
    """

    encoder_layers: Positive = 6
    """Encoder layers, N in the paper; `layers` sets both depths at once."""
    decoder_layers: Count = 6
    """Decoder layers; 0 for an encoder alone, such as BERT, which can only be imported."""
    heads: Positive = 8
    """Heads in each attention of a layer, h in the paper."""
    decoder_heads: Positive | None = None
    """Heads in each attention of a decoder layer; `null`: as many as `heads`."""
    width: Positive = 512
    """Neurons of the residual stream, d_model; even, and a multiple of `heads`."""
    ff_width: Positive = 2048
    """Neurons inside the feed-forward networks, d_ff."""
    decoder_ff_width: Positive | None = None
    """The same in the decoder; `null`: as many as `ff_width`."""
    ff_block: Positive = 32
    """Neurons inside a feed-forward network that are pruned and ranked together."""
    head_width: Positive | None = None
    """Neurons of a head's queries, keys and values; `null`: `width / heads`."""
    decoder_head_width: Positive | None = None
    """The same for the decoder's heads; `null`: as in the encoder."""
    activation: Literal["relu", "gelu", "gelu_tanh", "swish"] = "relu"
    """Of the feed-forward networks; `gelu_tanh` is the usual approximation of `gelu`."""
    gated: bool = False
    """Multiply hidden neurons of feed-forward networks by a second linear map (T5 1.1)."""
    norm: Literal["pre", "post"] = "pre"
    """Norm before each block and once at the end (`pre`), or behind each sum (`post`: imports)."""
    norm_kind: Literal["layer", "rms"] = "layer"
    """Layer norm, or RMS norm, which neither centres nor shifts (T5)."""
    norm_epsilon: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance."""
    biases: bool = True
    """Whether attention and feed-forward networks have biases; T5 has none."""
    scale_scores: bool = True
    """Divide attention scores by the square root of a head's width; T5 does not."""
    dropout: Share = 0.1
    """On embeddings and on the output of every block."""
    attention_dropout: Share = 0.0
    """On attention weights; imported models have it, trials here gained nothing by it."""
    activation_dropout: Share = 0.0
    """Inside the feed-forward networks; imported models have it, trials gained nothing."""
    embedding_scale: bool = True
    """Multiply embeddings by the square root of `width` (Vaswani et al. 2017)."""
    embedding_norm: bool = False
    """Norm of the embeddings with their positions (BART, BERT)."""
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    """What is added to embeddings: computed or learned positions, or none (T5)."""
    relative_positions: Literal["none", "stack", "layer"] = "none"
    """Biases of self-attention scores by distance: one table for all layers (T5), or one each."""
    position_offset: Count = 0
    """Sinusoidal positions are counted from this number (M2M100: 2)."""
    position_buckets: Annotated[int, Field(ge=4)] = 32
    """Relative positions: ranges of distances, each with a bias for every head."""
    position_distance: Positive = 128
    """Relative positions: all longer distances are the same."""
    position_spread: tuple[Spread, Spread] | None = None
    """Deviation of biases before training, of a layer's first and last head; `null`: small."""
    position_spread_layers: Positive | None = None
    """How many layers begin with that spread, from the lowest on; `null`: all."""
    position_base: Annotated[float, Field(gt=1)] = 10000.0
    """The longest wavelength of positions over the shortest (2 pi tokens); 100 for short text."""
    tie: Literal["none", "target", "inputs", "all"] = "target"
    """Which matrices are shared: none, target embedding and output, both embeddings, all three."""
    output_bias: bool = False
    """A bias for each logit."""
    output_network: bool = False
    """Linear map, activation and norm before the output layer: BERT's masked-language head."""
    classes: tuple[str, ...] = ()
    """Names of the classes of an encoder that classifies sentences instead of writing tokens."""
    class_activation: Literal["tanh", "relu"] = "tanh"
    """Of the linear map before that output layer."""
    max_positions: Annotated[int, Field(ge=2, le=10**6)] = 1024
    """Tokens that a sentence may have, EOS or START counted; at least 2: one besides it."""
    first_tokens: tuple[Count, ...] = ()
    """Token ids that every output begins with, such as the code of a language."""
    family: str | None = None
    """Which family of models an imported run comes from; written by `headcount import`."""

    @model_validator(mode="before")
    @classmethod
    def _layers_sets_both(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and "layers" in settings:
            settings = dict(settings)
            layers = settings.pop("layers")
            settings.setdefault("encoder_layers", layers)
            settings.setdefault("decoder_layers", layers)
        return settings

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelConfig:
        for site in ("enc", "dec"):
            heads = self.heads_at(site)
            own = self.decoder_head_width if site == "dec" else None
            if (own or self.head_width) is None and self.width % heads:
                raise ValueError(f"width {self.width} is not a multiple of {heads} heads")
        if self.position_distance <= self.position_buckets // 2:
            raise ValueError(
                f"position_distance {self.position_distance} is too short for"
                f" {self.position_buckets} buckets: more than half of them are single distances"
            )
        if self.position_spread and self.relative_positions == "none":
            raise ValueError("position_spread needs relative_positions: there are no biases else")
        if self.position_spread_layers and not (
            self.position_spread and self.relative_positions == "layer"
        ):
            raise ValueError(
                "position_spread_layers needs position_spread and relative_positions: layer"
            )
        if not self.decoder_layers and self.tie != "all":
            raise ValueError("an encoder alone has one embedding matrix: tie = all")
        if self.width % 2 and self.positions != "none":
            raise ValueError(
                f"width {self.width} is odd; sine and cosine positions need an even one"
            )
        return self

    @property
    def predicts(self) -> bool:
        """Whether there are logits; an encoder without an output head has none."""
        return bool(self.decoder_layers or self.output_network or self.classes)

    def heads_at(self, site: str) -> int:
        """Heads in one layer of a site, before any is pruned."""
        return self.heads if site == "enc" else self.decoder_heads or self.heads

    def head_width_at(self, site: str) -> int:
        """Neurons in one head of a site."""
        own = self.head_width if site == "enc" else self.decoder_head_width or self.head_width
        return own or self.width // self.heads_at(site)

    def ff_width_at(self, part: str) -> int:
        """Neurons in the feed-forward network of a part: `enc_ff` or `dec_ff`."""
        return self.ff_width if part == "enc_ff" else self.decoder_ff_width or self.ff_width

    def unit_blocks(self, part: str) -> int:
        """Blocks of units in the feed-forward network of a part; the last may be smaller."""
        return -(-self.ff_width_at(part) // self.ff_block)

    def units_of(self, part: str, index: int) -> range:
        """The units of one block."""
        first = index * self.ff_block
        return range(first, min(first + self.ff_block, self.ff_width_at(part)))


class SearchConfig(Section):
    """How a run searches for translations where the user does not say otherwise (App. B).

    The fields are those of `headcount.model.decoding.Search`, which explains them.
    """

    beam: Annotated[int, Field(gt=0, le=MAX_BEAM)] = 4
    """Hypotheses of a sentence; 1 is greedy."""
    length_penalty: Annotated[float, Field(ge=0, le=MAX_LENGTH_PENALTY)] = 0.6
    """0 prefers short translations, larger values longer ones."""
    normalisation: Literal["wu", "length"] = "wu"
    """Log-probability over `((5 + n) / 6) ** length_penalty`, or `n ** ...`."""
    max_ratio: Annotated[float, Field(ge=0, le=10**6)] = 2.0
    """An output has at most `max_ratio` x source + `max_extra` tokens."""
    max_extra: Count = 10
    """See `max_ratio`."""
    min_length: Count = 0
    """An output has at least this many tokens."""
    early_stop: bool = False
    """End with `beam` finished hypotheses, even if others could score higher (CTranslate2)."""
    force_end: bool = False
    """An unfinished output at the limit gets an EOS at no cost (Hugging Face)."""
    forbidden: tuple[Count, ...] = ()
    """Token ids that are never written."""
    renormalise: bool = False
    """The other tokens share the probability of forbidden ones (MarianMT)."""


class TrainingConfig(Section):
    """Objective, optimiser, schedule, and when to evaluate and to save (App. B.3)."""

    seed: Count = 1
    """Random seed of initial weights, order of batches, dropout."""
    updates: Positive = 200_000
    """Optimiser steps at most."""
    batch_tokens: Positive = 16000
    """Source tokens of an update, EOS counted, over all devices (App. B.1)."""
    device_tokens: Positive = 4000
    """Source tokens of a micro-batch: what a device holds at once."""
    join_pairs: Positive = 1
    """Up to this many training pairs are joined into one, at random; 1 joins none."""
    hold_positions: bool = False
    """The encoder's position biases stay as they are: heads go on looking where they look."""
    learning_rate_scale: Annotated[float, Field(gt=0)] = 4.0
    """The schedule's factor (App. B.3): rate = scale / sqrt(width) x ..."""
    warmup: Positive = 16000
    """Updates until the largest learning rate; then it falls as 1 / sqrt(update)."""
    cooldown: Count = 0
    """Number of last updates over which the learning rate falls to zero; 0 as in the paper."""
    adam_beta1: Share = 0.9
    """App. B.3."""
    adam_beta2: Share = 0.98
    """App. B.3."""
    adam_epsilon: Annotated[float, Field(gt=0)] = 1e-9
    """App. B.3."""
    clip_norm: Annotated[float, Field(ge=0)] = 0.0
    """Gradients are clipped to this norm; 0: never."""
    label_smoothing: Share = 0.1
    """Share of the probability that is spread over the vocabulary."""
    teacher: Path | None = None
    """A run with the same vocabulary whose distributions are learned too; `null`: none."""
    distil: Annotated[float, Field(gt=0, le=1)] = 0.5
    """With a teacher: the share of the target distribution that is the teacher's."""
    distil_states: Annotated[float, Field(ge=0)] = 0.0
    """With a teacher: weight of the mean squared difference of encoder states; 0: none."""
    precision: Precision = "auto"
    """`auto`: bf16 on GPUs, float32 elsewhere. Processors with bf16 are faster with it too."""
    log_every: Positive = 100
    """Updates between two lines of `metrics.jsonl`."""
    evaluate_every: Positive = 2000
    """Updates between two evaluations: dev loss, BLEU and heads."""
    save_every: Positive = 2000
    """Updates between two checkpoints."""
    keep_checkpoints: Positive = 5
    """Older checkpoints are deleted."""
    average_checkpoints: Count = 5
    """At the end up to this many checkpoints are averaged: as many as are best on dev."""
    patience: Count = 0
    """Stop after this many evaluations without a better dev loss; 0: never."""
    minutes: Annotated[float, Field(gt=0)] | None = None
    """Stop after this much training time, evaluations not counted; `null`: no limit."""
    dev_sentences: Positive = 1000
    """Dev pairs for the loss, spread evenly over the dev set."""
    bleu_sentences: Count = 500
    """Dev pairs for greedy BLEU; 0: no BLEU while training."""
    watch_heads: bool = True
    """Also log confidence and positional shares of encoder heads."""

    def updates_with(self, more: int, batch_tokens: int | None) -> int:
        """Updates that see as much text as this training and `more` updates of that size."""
        tokens = more * (batch_tokens or self.batch_tokens)
        return self.updates + math.ceil(tokens / self.batch_tokens)


class Config(Section):
    """The whole recipe of a run."""

    version: int = RUN_VERSION
    """Of the format; written by headcount."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    search: SearchConfig = SearchConfig()
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _held_positions_exist(self) -> Config:
        if self.training.hold_positions and self.model.relative_positions == "none":
            raise ValueError("training.hold_positions needs model.relative_positions")
        return self

    @model_validator(mode="after")
    def _pairs_fit_the_model(self) -> Config:
        longest = self.model.max_positions - 1  # EOS, or START, takes one
        if self.data.max_length > longest:
            self.data = self.data.model_copy(update={"max_length": longest})
        return self

    def to_yaml(self) -> str:
        """The resolved configuration, as written into a run folder."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_recipe(path: Path, overrides: Iterable[str] = ()) -> Config:
    """Read a recipe file and apply `section.key=value` overrides."""
    settings = read_yaml(path)
    if "pairs" in settings:
        raise UserError(f"{path} is the recipe of a study.", "Give it to `headcount study`.")
    if _text_twice(settings):
        raise UserError(
            f"{path}: data.corpus and data.folder are two different texts.",
            "Keep the one that you mean and set the other to null.",
        )
    for override in overrides:
        apply_override(settings, override)
    if _text_twice(settings):
        text = (
            "data.folder is read, not the data.corpus of the recipe (set it to null to be clear)."
        )
        warnings.warn(Notice(text), stacklevel=2)
    config = parse_config(settings, where=str(path))
    if config.data.folder is not None and config.data.pairs is not None:
        raise UserError(
            f"{path}: data.pairs chooses from data.corpus, but data.folder is read whole.",
            "Make a smaller folder with `headcount data own --pairs N`, and set data.pairs=null.",
        )
    return config


def _text_twice(settings: Mapping[str, Any]) -> bool:
    """Whether a recipe names a corpus and a folder; a run's `config.yaml` has every setting."""
    data = settings.get("data")
    named = isinstance(data, dict) and None not in (data.get("corpus"), data.get("folder"))
    return named and "version" not in settings


def parse_config(settings: Mapping[str, Any], where: str) -> Config:
    """Validate settings; the first problem becomes one readable line."""
    version = settings.get("version", RUN_VERSION)
    if isinstance(version, int) and version > RUN_VERSION:
        raise UserError(
            f"{where} was written by a newer headcount (format {version}, this one reads up to"
            f" {RUN_VERSION}).",
            "Upgrade headcount.",
        )
    try:
        return Config.model_validate(without_removed(settings, REMOVED, where))
    except ValidationError as error:
        raise readable_error(error, where, Config) from error
