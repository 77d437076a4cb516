"""Token embeddings plus sinusoidal positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.model.dropout import dropout
from headcount.model.recording import Tape


def sinusoids(
    length: int, width: int, base: float = 10000.0, shortest: float = 2 * math.pi
) -> Tensor:
    """Position encodings `[length, width]`: all sines, then all cosines.

    Wavelengths go from `shortest` to `shortest * base` tokens.

    The order of Vaswani et al.'s own code and of Marian; interleaving them instead, as the
    formula in that paper is often read, is the same up to a permutation of neurons. Computed in
    float64: an angle of hundreds of radians in float32 is wrong in the fifth digit.
    """
    exponents = torch.arange(0, width, 2, dtype=torch.float64) / width  # [width / 2]
    frequencies = 2 * math.pi / shortest * base**-exponents  # in radians per token
    angles = torch.arange(length)[:, None] * frequencies  # [length, width / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=1).float()


def position_table(length: int, config: ModelConfig) -> Tensor:
    """What a model adds to its token embeddings, `[length, width]`."""
    return config.position_scale * sinusoids(
        length, config.width, config.position_base, config.shortest_wavelength
    )


class Embedding(nn.Module):
    """Tokens `[batch, length]` to vectors `[batch, length, width]`."""

    positions: Tensor

    def __init__(self, part: str, config: ModelConfig, table: nn.Embedding, tape: Tape) -> None:
        super().__init__()
        self.part = part
        self.table = table
        self.scale = math.sqrt(config.width) if config.embedding_scale else 1.0
        self.dropout = config.dropout
        self.word_dropout = config.word_dropout if part == "enc_in" else 0.0
        self.tape = tape
        self.config = config
        self.register_buffer("positions", position_table(128, config), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed whole sentences."""
        x: Tensor = self.table(tokens) * self.scale
        if self.training and self.word_dropout:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * kept[..., None]
        x = x + self._positions(0, tokens.shape[1])
        if self.training and self.dropout:
            x = dropout(x, self.dropout)
        return self.tape.at(self.part, 0, "result", x)

    def step(self, tokens: Tensor, position: int) -> Tensor:
        """Embed tokens `[rows]` that all stand at one position: `[rows, width]`."""
        rows = F.embedding(tokens, self.table.weight) * self.scale
        return rows.add_(self._positions(position, position + 1))

    def _positions(self, first: int, last: int) -> Tensor:
        """The encodings of positions `[first, last)`."""
        most = self.config.max_positions
        if last > most:
            raise UserError(
                f"A sentence of {last} tokens is longer than the model's {most} positions.",
                "Split the sentence.",
            )
        if last > len(self.positions):
            longer = position_table(min(most, 2 * last), self.config)
            self.positions = longer.to(self.positions)
        return self.positions[first:last]


def embedding_table(size: int, width: int) -> nn.Embedding:
    """A table whose scaled rows start with unit variance in each neuron."""
    table = nn.Embedding(size, width)
    nn.init.normal_(table.weight, std=width**-0.5)
    return table
