"""`headcount train --estimate`: hours, memory and traffic of a training, before it begins.

For n processes with one device each:

    seconds per update = arithmetic / (n x peak x efficiency) + traffic / link
    arithmetic = 3 x 2 x multiply-adds of a forward pass    backward has two products for each one
    traffic = 2 (n - 1) / n x 4 bytes x parameters          what each process sends: a ring's sum
    memory = weights, gradients and Adam's two means + what backward needs of a micro-batch

Traffic is not hidden behind the arithmetic: gradients are summed once, after the last micro-batch.
Multiply-adds are counted from the model's shapes (`model/arithmetic.py`). Not counted: reading the
corpus, evaluations and checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headcount.config import Config
from headcount.errors import UserError
from headcount.model.arithmetic import count_parameters, translation_products
from headcount.model.transformer import Transformer, blank_model

DEVICES = "1,4,16"

PEAK = 312.0
"""TFLOPS of a device: NVIDIA A100, bf16 with dense matrices (its data sheet)."""

EFFICIENCY = 0.3
"""Share of the peak that a training reaches: Vaswani et al. (2017), Sec. 5.2, report 0.4 s for an
update of the base model on eight P100 (9.5 TFLOPS each, their Sec. 6.1), with 25,000 source and
25,000 target tokens; `docs/scaling.md` has the sum."""

LINK = 12.5
"""GB/s from process to process: 100 Gbit/s between machines."""

LENGTH = 25
"""Tokens of a sentence, EOS counted, on each side."""

MOST = 10**6  # devices

FLOAT = 4  # bytes; gradients are summed and Adam's means are kept in float32


@dataclass(frozen=True)
class Machines:
    """What a training would run on: numbers of devices, and what each of them can do."""

    devices: str | Sequence[int] = DEVICES
    peak: float = PEAK
    efficiency: float = EFFICIENCY
    link: float = LINK

    @property
    def counts(self) -> list[int]:
        """The numbers of devices; `1,4,16` is three of them."""
        if not isinstance(self.devices, str):
            return list(self.devices)
        try:
            return [int(part) for part in self.devices.split(",")]
        except ValueError as error:
            raise UserError(
                f"--devices {self.devices} are not numbers.",
                f"Write them as in --devices {DEVICES}.",
            ) from error

    def __post_init__(self) -> None:
        if not self.counts or not all(1 <= count <= MOST for count in self.counts):
            raise UserError(
                "--devices has a number that is not from 1 to a million.",
                f"Give numbers of devices, such as {DEVICES}.",
            )
        if min(self.peak, self.efficiency, self.link) <= 0 or self.efficiency > 1:
            raise UserError(
                "--peak and --link are above 0, and --efficiency is a share of 1.",
                "Leave them out for those of an A100.",
            )


@dataclass(frozen=True)
class Row:
    """One number of devices. Bytes are those of one device and of one process."""

    devices: int
    device_tokens: int
    seconds_per_update: float
    hours: float
    memory_bytes: int
    bytes_sent_per_update: int


@dataclass(frozen=True)
class Estimate:
    """What a training takes; `rows` has one entry per number of devices."""

    parameters: int
    flops_per_source_token: float
    flops_per_update: float
    updates: int
    minutes: float | None
    source_tokens: int
    precision: str
    length: int
    peak_tflops: float
    efficiency: float
    link_gigabytes: float
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return asdict(self)


def estimate(
    config: Config, machines: Machines | None = None, length: int | None = None
) -> Estimate:
    """What training a recipe takes on so many devices, if each sentence has `length` tokens."""
    machines, length = machines or Machines(), length or LENGTH
    training, longest = config.training, config.model.max_positions
    if length > longest:
        raise UserError(
            f"--length {length} is above model.max_positions ({longest}).", "Give fewer tokens."
        )
    precision = "bf16" if training.precision == "auto" else training.precision
    sizes = config.data.source_vocabulary, config.data.target_vocabulary
    model = blank_model(config.model, *sizes, pad=0)
    parameters = count_parameters(model)
    per_token = 6 * translation_products(model, [length], [length]) / length
    flops = per_token * training.batch_tokens
    rows = []
    for count in machines.counts:
        tokens = min(training.device_tokens, max(1, training.batch_tokens // count))
        sent = round(2 * (count - 1) / count * FLOAT * parameters)
        seconds = flops / (count * 1e12 * machines.peak * machines.efficiency)
        seconds += sent / (1e9 * machines.link)
        hours = seconds * training.updates / 3600
        if training.minutes is not None:
            hours = min(hours, training.minutes / 60)
        memory = training_bytes(model, tokens, precision, together=count > 1)
        rows.append(Row(count, tokens, seconds, hours, memory, sent))
    return Estimate(
        parameters,
        per_token,
        flops,
        training.updates,
        training.minutes,
        training.updates * training.batch_tokens,
        precision,
        length,
        machines.peak,
        machines.efficiency,
        machines.link,
        tuple(rows),
    )


def training_bytes(model: Transformer, tokens: int, precision: str, together: bool) -> int:
    """Bytes of tensors in an update with micro-batches of this many source tokens.

    Weights, gradients and Adam's two means are four numbers per parameter. Processes together have
    one more copy of the gradients, which is what they send; autocast has a copy of the weights in
    bf16.
    """
    size = 2 if precision == "bf16" else FLOAT
    parameters = count_parameters(model)
    state = parameters * (FLOAT * (4 + together) + (size if size < FLOAT else 0))
    return state + tokens * _bytes_per_token(model, size)


def _bytes_per_token(model: Transformer, size: int) -> int:
    """What backward needs of a pair of positions, one on each side; `size` is that of a number.

    An attention keeps the residual stream, its norm, a mask of dropout (counted as half a number),
    queries, keys, values and what its heads read; a feed-forward network the first three and its
    hidden neurons. The output layer has logits, and their gradient in float32.
    """
    config = model.config
    width = config.width
    encoder = 5 * width + 4 * config.heads * config.head_width_at("enc")
    encoder += config.ff_width_at("enc_ff")
    decoder = 8 * width + 8 * config.heads_at("dec") * config.head_width_at("dec")
    decoder += config.ff_width_at("dec_ff")
    numbers = config.encoder_layers * encoder + config.decoder_layers * decoder + 2 * width
    return size * numbers + (size + FLOAT) * len(model.output_weight)
