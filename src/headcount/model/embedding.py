"""Token embeddings and positions: how a model knows its tokens, and where they stand.

Sinusoidal and learned positions are added to the embeddings. Relative ones are biases of the
attention scores of every head, shared by all layers of a stack (T5) or learned for each layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.model.primitives import dropout, make_norm, norm_function
from headcount.model.recording import Tape


def sinusoids(length: int, width: int, base: float = 10000.0, first: int = 0) -> Tensor:
    """Position encodings `[length, width]`: all sines, then all cosines.

    Wavelengths go from `2 pi` to `2 pi base` tokens; `first` is the number of the first position.

    The order of Vaswani et al.'s own code and of Marian; interleaving them instead, as the
    formula in that paper is often read, is the same up to a permutation of neurons. Computed in
    float64: an angle of hundreds of radians in float32 is wrong in the fifth digit.
    """
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width  # [width / 2]
    frequencies = base**-exponents  # in radians per token
    angles = torch.arange(first, first + length)[:, None] * frequencies  # [length, width / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def position_table(length: int, config: ModelConfig) -> Tensor:
    """What a model with sinusoidal positions adds to its token embeddings, `[length, width]`.

    Learned positions begin as these.
    """
    return sinusoids(length, config.width, config.position_base, config.position_offset)


class RelativePositions(nn.Module):
    """A bias for each head and each range of distances (Raffel et al. 2020, Sec. 2.1).

    Half of the buckets are for single distances, the others for ranges that grow as logarithms up
    to `config.position_distance`; everything beyond shares the last one. In an encoder half of
    all buckets are for keys to the right of the query.

    Biases that begin near zero grow into windows that fall off with distance. With
    `config.position_spread` the later heads of a layer begin with distances of their own, drawn at
    random, which training keeps, moves or drops; a single head begins as the first one. With
    `config.position_spread_layers` only so many of the lowest layers begin like that.
    """

    def __init__(self, config: ModelConfig, site: str, layer: int = 0) -> None:
        super().__init__()
        self.both_ways = site == "enc"
        self.buckets, self.distance = config.position_buckets, config.position_distance
        self.table = nn.Parameter(torch.empty(self.buckets, config.heads_at(site)))
        first = last = config.width**-0.5
        spread_layers = config.position_spread_layers
        if config.position_spread and (spread_layers is None or layer < spread_layers):
            first, last = config.position_spread
        nn.init.normal_(self.table).data.mul_(torch.linspace(first, last, self.table.shape[1]))

    def forward(self, length: int, heads: tuple[int, ...]) -> Tensor:
        """Biases of the given heads for queries and keys `0 .. length`: `[heads, length, length]`.

        In a decoder they are `-inf` for keys behind the query.
        """
        at = torch.arange(length, device=self.table.device)
        offsets = at - at[:, None]  # key - query
        biases = self.table[self._bucket(offsets)][..., list(heads)].permute(2, 0, 1)
        return biases if self.both_ways else biases.masked_fill(offsets > 0, -torch.inf)

    def last_row(self, length: int, heads: tuple[int, ...]) -> Tensor:
        """Biases of the query at the end of `length` tokens: `[heads, length]`."""
        offsets = torch.arange(1 - length, 1, device=self.table.device)
        return self.table[self._bucket(offsets)][:, list(heads)].t()

    def by_offset(self, heads: tuple[int, ...]) -> Tensor:
        """Biases of all offsets that differ, `[offsets, heads]`: from `-distance` on.

        They go to `distance` in an encoder and to 0 in a decoder; beyond, all are the same.
        """
        last = self.distance if self.both_ways else 0
        offsets = torch.arange(-self.distance, last + 1, device=self.table.device)
        return self.table[self._bucket(offsets)][:, list(heads)]

    def _bucket(self, offsets: Tensor) -> Tensor:
        """Bucket numbers of offsets, key position minus query position."""
        buckets, base = self.buckets, torch.zeros_like(offsets)
        if self.both_ways:
            buckets //= 2
            base, offsets = (offsets > 0) * buckets, -offsets.abs()
        steps = -offsets.clamp(max=0)
        single = buckets // 2
        growth = (steps.clamp(min=1).float() / single).log() / math.log(self.distance / single)
        ranges = single + (growth * (buckets - single)).long()
        return base + torch.where(steps < single, steps, ranges.clamp(max=buckets - 1))


def relative_tables(config: ModelConfig, site: str, layers: int) -> nn.ModuleList:
    """The tables of position biases of a stack: none, one for all of its layers, or one each."""
    count = {"none": 0, "stack": 1, "layer": layers}[config.relative_positions]
    return nn.ModuleList(RelativePositions(config, site, layer) for layer in range(count))


def relative_to(tables: nn.ModuleList, layer: int) -> RelativePositions | None:
    """The table that a layer uses."""
    if not tables:
        return None
    table = tables[min(layer, len(tables) - 1)]
    assert isinstance(table, RelativePositions)
    return table


FIRST_POSITIONS = 128
"""Sinusoidal positions that are computed at once; more where a sentence needs them."""


class Embedding(nn.Module):
    """Tokens `[batch, length]` to vectors `[batch, length, width]`."""

    positions: Tensor

    def __init__(self, part: str, config: ModelConfig, table: nn.Embedding, tape: Tape) -> None:
        super().__init__()
        self.part = part
        self.table = table
        self.scale = math.sqrt(config.width) if config.embedding_scale else 1.0
        self.dropout = config.dropout
        self.tape = tape
        self.config = config
        self.norm = make_norm(config) if config.embedding_norm else None
        self.adds_positions = config.positions != "none"
        if config.positions == "learned":
            self.positions = nn.Parameter(position_table(config.max_positions, config))
        else:
            first = position_table(FIRST_POSITIONS if self.adds_positions else 0, config)
            self.register_buffer("positions", first, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed whole sentences."""
        x: Tensor = self.table(tokens) * self.scale
        positions = self.positions_at(0, tokens.shape[1])
        if self.adds_positions:
            x = x + positions
        if self.norm is not None:
            x = self.norm(x)
        if self.training and self.dropout:
            x = dropout(x, self.dropout)
        return self.tape.at(self.part, 0, "result", x)

    def step(self, tokens: Tensor, position: int) -> Tensor:
        """Embed tokens `[rows]` that all stand at one position: `[rows, width]`."""
        rows = F.embedding(tokens, self.table.weight) * self.scale
        here = self.positions_at(position, position + 1)
        if self.adds_positions:
            rows = rows.add_(here)
        return rows if self.norm is None else norm_function(self.norm)(rows)

    def positions_at(self, first: int, last: int) -> Tensor:
        """The encodings of positions `[first, last)`, `[last - first, width]`.

        There are none where positions are relative, but the limit on length applies all the same.
        """
        most = self.config.max_positions
        if last > most:
            raise UserError(
                f"A sentence of {last} tokens is longer than the model's {most} positions.",
                "Split the sentence.",
            )
        if self.adds_positions and last > len(self.positions):
            longer = position_table(min(most, 2 * last), self.config)
            self.positions = longer.to(self.positions)
        return self.positions[first:last]


def embedding_table(size: int, width: int) -> nn.Embedding:
    """A table whose scaled rows start with unit variance in each neuron."""
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table
