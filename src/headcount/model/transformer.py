"""The Transformer (Vaswani et al. 2017; Sec. 2): the one model that everything here works on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.heads import Head, HeadLayout
from headcount.model.attention import Attention, KeysValues
from headcount.model.embedding import Embedding, embedding_table
from headcount.model.layers import DecoderLayer, EncoderLayer
from headcount.model.recording import Tape


@dataclass
class DecoderCache:
    """What a decoder needs of the past: keys and values of each layer.

    `own[layer]` are `[batch, heads, steps, head]`, `source[layer]` `[batch, heads, source, head]`.
    """

    source: list[KeysValues | None]
    mask: Tensor | None
    own: list[KeysValues | None]
    steps: int = 0

    def select(self, rows: Tensor) -> DecoderCache:
        """The cache of the given batch rows, in that order (a row may appear several times)."""

        def pick(pair: KeysValues | None) -> KeysValues | None:
            return None if pair is None else (pair[0][rows], pair[1][rows])

        mask = None if self.mask is None else self.mask[rows]
        return DecoderCache(
            [pick(p) for p in self.source], mask, [pick(p) for p in self.own], self.steps
        )

    def select_own(self, rows: Tensor) -> DecoderCache:
        """Reorder the targets' past only: hypotheses that move within their own sentence."""
        own = [None if p is None else (p[0][rows], p[1][rows]) for p in self.own]
        return DecoderCache(self.source, self.mask, own, self.steps)


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
        self.heads = heads or HeadLayout.full(
            config.encoder_layers, config.decoder_layers, config.heads
        )
        self.tape = Tape()
        source_table = embedding_table(source_size, config.width)
        if config.tie == "all":
            target_table = source_table
        else:
            target_table = embedding_table(target_size, config.width)
        self.source_embedding = Embedding("enc_in", config, source_table, self.tape)
        self.target_embedding = Embedding("dec_in", config, target_table, self.tape)
        self.encoder = nn.ModuleList(
            EncoderLayer(i, config, self.heads, self.tape) for i in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(i, config, self.heads, self.tape) for i in range(config.decoder_layers)
        )
        pre_norm = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(config.width) if pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.width) if pre_norm else nn.Identity()
        self.output_weight = (
            nn.Parameter(torch.randn(target_size, config.width) * config.width**-0.5)
            if config.tie == "none"
            else target_table.weight
        )
        self.output_bias = nn.Parameter(torch.zeros(target_size)) if config.output_bias else None

    def forward(self, source: Tensor, target_input: Tensor) -> Tensor:
        """Tokens `[batch, source]`, `[batch, target]` to logits `[batch, target, vocabulary]`."""
        memory, mask = self.encode(source)
        return self.logits(self.decode(target_input, memory, mask))

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor | None]:
        """Tokens `[batch, source]` to memory `[batch, source, width]` and its key mask.

        The mask is `[batch, 1, 1, source]`, true for real tokens, or None where nothing is padded.
        """
        real = source != self.pad
        mask = None if bool(real.all()) else real[:, None, None, :]
        x = self.source_embedding(source)
        for layer in self.encoder:
            x = layer(x, mask)
        memory = self.encoder_norm(x)
        self.tape.keep("enc_out", 0, residual=x, result=memory)
        return memory, mask

    def decode(self, target_input: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Target prefix `[batch, target]` to states `[batch, target, width]`, all steps at once."""
        x = self.target_embedding(target_input)
        for layer in self.decoder:
            x = layer(x, memory, mask)
        states: Tensor = self.decoder_norm(x)
        self.tape.keep("dec_out", 0, residual=x, result=states)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """States `[..., width]` to logits `[..., vocabulary]`."""
        return F.linear(states, self.output_weight, self.output_bias)

    def start(self, memory: Tensor, mask: Tensor | None) -> DecoderCache:
        """Begin decoding step by step: project the source once for each layer."""
        source: list[KeysValues | None] = []
        for layer in self.decoder_layers():
            attention = layer.cross_attention.attention
            source.append(attention.keys_values(memory) if attention.heads else None)
        return DecoderCache(source, mask, [None] * len(source))

    def step(self, tokens: Tensor, cache: DecoderCache) -> Tensor:
        """One step: last tokens `[batch]` to states `[batch, width]`; the cache grows by it."""
        x = self.target_embedding(tokens[:, None], first=cache.steps)  # [batch, 1, width]
        for i, layer in enumerate(self.decoder_layers()):
            x, cache.own[i] = layer.step(x, cache.own[i], cache.source[i], cache.mask)
        cache.steps += 1
        states: Tensor = self.decoder_norm(x)[:, 0]
        return states

    def encoder_layers(self) -> list[EncoderLayer]:
        """The encoder's layers, bottom first."""
        return cast(list[EncoderLayer], list(self.encoder))

    def decoder_layers(self) -> list[DecoderLayer]:
        """The decoder's layers, bottom first."""
        return cast(list[DecoderLayer], list(self.decoder))

    def attentions(self) -> dict[tuple[str, int], Attention]:
        """Every attention by `(site, layer)`."""
        found: dict[tuple[str, int], Attention] = {}
        for i, encoder_layer in enumerate(self.encoder_layers()):
            found["enc", i] = encoder_layer.self_attention.attention
        for i, decoder_layer in enumerate(self.decoder_layers()):
            found["dec", i] = decoder_layer.self_attention.attention
            found["cross", i] = decoder_layer.cross_attention.attention
        return found

    def head_list(self) -> list[Head]:
        """Every head that the model has."""
        return self.heads.heads()
