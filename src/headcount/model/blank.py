"""Models whose weights are about to be replaced.

To draw the first weights of a model of hundreds of millions of parameters takes longer than to
read others from disk, and touches all of its memory. Small models get theirs all the same: what is
drawn at random after them must not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch.overrides import TorchFunctionMode

from headcount.config import ModelConfig
from headcount.heads import HeadLayout
from headcount.model.transformer import Transformer

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
    """A model to load weights into; arguments as for `Transformer`."""
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
