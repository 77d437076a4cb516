"""Token embeddings, and the positions that are added to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.errors import UserError
from headcount.model.dropout import dropout
from headcount.model.norm import make_norm, norm_function
from headcount.model.positions import position_table
from headcount.model.recording import Tape

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
        self.word_dropout = config.word_dropout if part == "enc_in" else 0.0
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
        if self.training and self.word_dropout:
            kept = torch.rand(tokens.shape, device=tokens.device) >= self.word_dropout
            x = x * kept[..., None]
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
