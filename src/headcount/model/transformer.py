"""The Transformer (Vaswani et al. 2017; Sec. 2): the one model that everything here works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.heads import SITES, Head, HeadLayout
from headcount.model.attention import Attention
from headcount.model.embedding import Embedding, embedding_table, relative_tables, relative_to
from headcount.model.layers import (
    ACTIVATIONS,
    DecoderLayer,
    EncoderLayer,
    FeedForwardBlock,
    Gateable,
)
from headcount.model.primitives import make_linear, make_norm
from headcount.model.recording import DECODER, Tape, WholePrefix
from headcount.model.stepping import DecoderCache, layer_step


class Transformer(nn.Module):
    """Encoder and decoder whose attention sites know their heads."""

    def __init__(
        self,
        config: ModelConfig,
        source_size: int,
        target_size: int,
        pad: int = 0,
        heads: HeadLayout | None = None,
        target_pad: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.pad = pad
        self.target_pad = pad if target_pad is None else target_pad
        if config.classes:
            self.target_pad = -1  # labels are classes, counted from 0; none is padding
        full = full_layout(config)
        self.heads = full if heads is None else heads.filled(full)
        self.tape = Tape()
        source_table = embedding_table(source_size, config.width)
        if config.tie in ("inputs", "all"):
            target_table = source_table
        else:
            target_table = embedding_table(target_size, config.width)
        self.source_embedding = Embedding("enc_in", config, source_table, self.tape)
        self.target_embedding = (
            Embedding("dec_in", config, target_table, self.tape)
            if config.decoder_layers
            else self.source_embedding
        )
        self.encoder_positions = relative_tables(config, "enc", config.encoder_layers)
        self.decoder_positions = relative_tables(config, "dec", config.decoder_layers)
        self.encoder = nn.ModuleList(
            EncoderLayer(i, config, self.heads, self.tape, relative_to(self.encoder_positions, i))
            for i in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(i, config, self.heads, self.tape, relative_to(self.decoder_positions, i))
            for i in range(config.decoder_layers)
        )
        pre_norm = config.norm == "pre"
        self.encoder_norm = make_norm(config) if pre_norm else nn.Identity()
        decoder_norm = pre_norm and config.decoder_layers
        self.decoder_norm = make_norm(config) if decoder_norm else nn.Identity()
        outputs = len(config.classes) or target_size
        self.output_weight = (
            nn.Parameter(torch.randn(outputs, config.width) * config.width**-0.5)
            if config.classes or config.tie in ("none", "inputs")
            else target_table.weight
        )
        self.output_bias = nn.Parameter(torch.zeros(outputs)) if config.output_bias else None
        has_network = config.output_network or config.classes
        self.output_network = OutputNetwork(config, self.tape) if has_network else None

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """Tokens `[batch, source]`, `[batch, target]` to logits `[batch, target, vocabulary]`.

        An encoder alone gives logits of the source's tokens, or of its class, `[batch, 1,
        classes]`, and ignores the target.
        """
        memory, mask = self.encode(source)
        return self.logits(self.decode(target_input, memory, mask))

    def encode(self, source: Tensor, padded: bool | None = None) -> tuple[Tensor, Tensor | None]:
        """Tokens `[batch, source]` to memory `[batch, source, width]` and its key mask.

        The mask is `[batch, 1, 1, source]`, true for real tokens, or None where nothing is padded.
        Pass `padded` in if you know it: reading it back from a GPU would stall the host.
        """
        real = source != self.pad
        if padded is None:
            padded = not bool(real.all())
        mask = real[:, None, None, :] if padded else None
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        x = self.tape.at("enc_out", 0, "residual", x)
        return self.tape.at("enc_out", 0, "result", self.encoder_norm(x)), mask

    def decode(self, target_input: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Target prefix `[batch, target]` to states `[batch, target, width]`, all steps at once.

        States are what the output layer reads. Those of an encoder alone are its output network's,
        one for each token of the source, or for the first one where it classifies sentences.
        """
        if not self.config.decoder_layers:
            return self._output_states(memory)
        x = self.target_embedding(target_input)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        x = self.tape.at("dec_out", 0, "residual", x)
        return self.tape.at("dec_out", 0, "result", self.decoder_norm(x))

    def logits(self, states: Tensor) -> Tensor:
        """States `[..., width]` to logits `[..., vocabulary]`."""
        return F.linear(states, self.output_weight, self.output_bias)

    @torch.no_grad()
    def start(
        self, memory: Tensor, mask: Tensor | None, beam: int = 1
    ) -> DecoderCache | WholePrefix:
        """Begin decoding step by step, without gradients: project the source once per layer."""
        if self.tape.edits_any(DECODER):
            return WholePrefix(memory, mask, beam)
        self._need_decoder()
        layers = self.decoder_layers()
        return DecoderCache(
            [layer_step(layer, index) for index, layer in enumerate(layers)],
            [layer.cross_attention.attention.keys_values(memory) for layer in layers],
            mask,
            [len(layer.self_attention.attention.heads) for layer in layers],
            memory,
            beam,
        )

    @torch.no_grad()
    def step(self, tokens: Tensor, cache: DecoderCache | WholePrefix) -> Tensor:
        """One step: last tokens `[batch, beam]` to states `[batch, beam, width]`.

        The tokens of a row are those of several hypotheses for one sentence. The cache grows.
        """
        if isinstance(cache, WholePrefix):
            return cache.step(self, tokens)
        x = self.target_embedding.step(tokens.flatten(), cache.steps)  # [batch * beam, width]
        cache.begin_step()
        for layer in cache.layers:
            x = layer(x, cache)
        states: Tensor = self.decoder_norm(x)
        return states.view(*tokens.shape, -1)

    def _output_states(self, memory: Tensor) -> Tensor:
        """What the output layer of an encoder alone reads, from its memory."""
        if self.output_network is None:
            raise UserError(
                "This encoder has no output head: there is no logit to explain, and no loss.",
                "`roles`, `rank --by confidence`, attention and `export --to transformers` work.",
            )
        states: Tensor = self.output_network(memory[:, :1] if self.config.classes else memory)
        return states

    def _need_decoder(self) -> None:
        if not self.config.decoder_layers:
            raise UserError(
                "This model is an encoder alone: it has no decoder, so it cannot translate.",
                "`roles`, `rank`, `explore`, `prune` and `export --to transformers` work.",
            )

    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers, bottom first."""
        return cast(list[EncoderLayer], list(self.encoder))

    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers, bottom first."""
        return cast(list[DecoderLayer], list(self.decoder))

    def attentions(self) -> dict[tuple[str, int], Attention]:
        """Every attention by `(site, layer)`."""
        attentions: dict[tuple[str, int], Attention] = {}
        for i, encoder_layer in enumerate(self.encoder_layers()):
            attentions["enc", i] = encoder_layer.self_attention.attention
        for i, decoder_layer in enumerate(self.decoder_layers()):
            attentions["dec", i] = decoder_layer.self_attention.attention
            attentions["cross", i] = decoder_layer.cross_attention.attention
        return attentions

    def gateables(self) -> dict[tuple[str, int], Gateable]:
        """Everything that has gates by `(site, layer)`: attentions, networks, whole layers."""
        found: dict[tuple[str, int], Gateable] = {**self.attentions(), **self.feed_forwards()}
        found |= {("enc_layers", i): layer for i, layer in enumerate(self.encoder_layers())}
        return found | {("dec_layers", i): layer for i, layer in enumerate(self.decoder_layers())}

    def feed_forwards(self) -> dict[tuple[str, int], FeedForwardBlock]:
        """Every feed-forward network by `(site, layer)`."""
        layers: list[EncoderLayer | DecoderLayer] = [*self.encoder_layers(), *self.decoder_layers()]
        networks = [layer.feed_forward for layer in layers]
        return {(network.part, network.layer): network for network in networks}

    def head_list(self, sites: Iterable[str] = SITES) -> list[Head]:
        """Every head that the model has; at other sites every block of units, every block."""
        return self.heads.heads(sites)


class OutputNetwork(nn.Module):
    """What an encoder alone does before its output layer.

    BERT's masked-language head has a norm; heads that classify have none.
    """

    def __init__(self, config: ModelConfig, tape: Tape) -> None:
        super().__init__()
        self.linear = make_linear(config.width, config.width, biases=True)
        name = config.class_activation if config.classes else config.activation
        self.activation = ACTIVATIONS[name]
        self.norm = nn.Identity() if config.classes else make_norm(config)
        self.tape = tape

    def forward(self, memory: Tensor) -> Tensor:
        """`[batch, length, width]` to the same."""
        at = self.tape.at
        hidden_in = at("out", 0, "hidden_in", self.linear(at("out", 0, "input", memory)))
        hidden = at("out", 0, "hidden", self.activation(hidden_in))
        return at("out", 0, "result", self.norm(hidden))


def side_of(parameter: str) -> str:
    """Which side a parameter of this name is on.

    `encoder` and `decoder` are the stacks with their norms and position biases, `source` and
    `target` the embeddings, `output` is what comes after the stacks.
    """
    return parameter.split(".")[0].split("_")[0]


def full_layout(config: ModelConfig) -> HeadLayout:
    """All heads that a model of this size has before any is pruned."""
    return HeadLayout.full(
        config.encoder_layers,
        config.decoder_layers,
        config.heads_at("enc"),
        config.heads_at("dec"),
        (config.unit_blocks("enc_ff"), config.unit_blocks("dec_ff")),
    )


LARGE = 100_000_000
"""Parameters from which on a model is not filled, and its weights are mapped rather than copied."""

_DRAWS = frozenset({"uniform_", "normal_", "kaiming_uniform_", "xavier_uniform_"})


class _Unfilled(TorchFunctionMode):
    """Inside this context nothing is drawn: tensors stay as they were allocated."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def blank_model(
    config: ModelConfig,
    source_size: int,
    target_size: int,
    pad: int,
    heads: HeadLayout | None = None,
    target_pad: int | None = None,
) -> Transformer:
    """A model to load weights into; arguments as for `Transformer`.

    Drawing the first weights of a model of hundreds of millions of parameters takes longer than
    reading others from disk, and touches all of its memory. Small models get theirs all the same:
    what is drawn at random after them must not depend on it.
    """
    with _Unfilled() if is_large(config, source_size, target_size) else nullcontext():
        return Transformer(config, source_size, target_size, pad, heads, target_pad)


def is_large(config: ModelConfig, source_size: int, target_size: int) -> bool:
    """Whether a model of this configuration has about LARGE parameters or more."""
    tables = {"none": 3, "target": 2, "inputs": 2, "all": 1}[config.tie]
    embeddings = tables * max(source_size, target_size)
    rows = 4 * config.heads * config.head_width_at("enc")
    encoder = config.encoder_layers * (rows + 2 * config.ff_width_at("enc_ff"))
    decoder = config.decoder_layers * (2 * rows + 2 * config.ff_width_at("dec_ff"))
    return config.width * (embeddings + encoder + decoder) >= LARGE
