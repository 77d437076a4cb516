"""Where relevance goes on its way down: what arrives, what biases take, what is lost (App. A.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headcount.model.transformer import Transformer

MEASURED = ("arrived", "magnitude", "bias", "to_source")


@dataclass(frozen=True)
class AuditRow:
    """One station, in relevance per generation step, each of which starts with 1 at its logit.

    arrived    sum of relevance over all neurons and positions; from the first step in the list on
               that is what is left of the 1, for the encoder what came through the memory
    magnitude  sum of |relevance|: 1 where nothing cancels
    largest    the largest |relevance| of one neuron in any step
    to_source  given to the encoder by this layer
    bias       taken by biases between this station and the next
    rest       taken by epsilon, or lost where a neuron had nothing to give it to
    """

    station: str
    arrived: float
    magnitude: float
    largest: float
    to_source: float
    bias: float
    rest: float


def stations(model: Transformer, source: bool = True) -> list[str]:
    """Where relevance is measured, top first: the logit, outputs of layers, embeddings.

    Without `source`, only down to the encoder's output.
    """
    config = model.config
    decoder = [f"dec.{i}" for i in reversed(range(config.decoder_layers))]
    encoder = [f"enc.{i}" for i in reversed(range(config.encoder_layers))]
    above = ["dec_out", *decoder, "dec_in"] if decoder else ["out"]
    names = ["logit", *above, "enc_out"]
    return [*names, *encoder, "enc_in"] if source else names


class Audit:
    """Sums over generation steps, station by station."""

    def __init__(self, names: Iterable[str], loses_nothing: bool = False) -> None:
        """`loses_nothing`: see `Rule.loses_nothing`."""
        self.names = list(names)
        self.loses_nothing = loses_nothing
        self.steps = 0
        self.sums = {(m, name): torch.zeros(()) for m in MEASURED for name in self.names}
        self.largest = {name: torch.zeros(()) for name in self.names}

    def add(self, measure: str, station: str, value: Tensor) -> None:
        """Add relevance, a scalar, to what was measured at a station."""
        self.sums[measure, station] = value + self.sums[measure, station].to(value.device)

    def arrive(self, station: str, relevance: Tensor) -> None:
        """Relevance arrives at the neurons of a station: a tensor of any shape."""
        self.add("arrived", station, relevance.sum())
        sizes = relevance.abs()
        self.add("magnitude", station, sizes.sum())
        top = sizes.amax()  # a third of the time of max()
        self.largest[station] = torch.maximum(self.largest[station].to(top), top)

    def table(self) -> Tensor:
        """Sums and maxima as float64 `[measures + 1, stations]`, the maxima last."""
        rows = [[float(self.sums[m, name]) for name in self.names] for m in MEASURED]
        rows.append([float(self.largest[name]) for name in self.names])
        table = torch.tensor(rows, dtype=torch.float64)
        if self.loses_nothing:
            arrived, to_source, bias = (
                table[MEASURED.index(m)] for m in ("arrived", "to_source", "bias")
            )
            bias.copy_(arrived - to_source - below(self.names, arrived))
        return table


def below(names: Sequence[str], arrived: Tensor) -> Tensor:
    """What arrives at the station below each one; the lowest ones keep what they have."""
    last = torch.tensor([name in ("dec_in", names[-1]) for name in names])
    return torch.where(last, arrived, arrived.roll(-1))


def audit_rows(names: Sequence[str], table: Tensor, steps: int) -> list[AuditRow]:
    """Means over generation steps from an `Audit.table`, or from the sum of several."""
    means = dict(zip(MEASURED, (table[:-1] / max(steps, 1)).tolist(), strict=True))
    arrived, rows = means["arrived"], []
    passed = below(names, torch.tensor(arrived, dtype=torch.float64)).tolist()
    for i, name in enumerate(names):
        leaves = means["to_source"][i] + means["bias"][i] + passed[i]
        rows.append(
            AuditRow(
                name,
                arrived[i],
                means["magnitude"][i],
                float(table[-1, i]),
                means["to_source"][i],
                means["bias"][i],
                arrived[i] - leaves,
            )
        )
    return rows
