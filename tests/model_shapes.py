"""Settings of the kinds of models that can be imported: properties hold for all of them."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "pre": {"norm": "pre"},
    "post": {"norm": "post"},
    "m2m100": {"norm": "pre", "position_offset": 2, "position_base": 2e4},
    "bart": {"norm": "post", "positions": "learned", "embedding_norm": True, "activation": "gelu"},
    "mbart": {"norm": "pre", "positions": "learned", "embedding_norm": True},
    "t5": {
        "norm_kind": "rms",
        "norm_epsilon": 1e-6,
        "positions": "none",
        "relative_positions": "stack",
        "position_buckets": 8,
        "position_distance": 12,
        "biases": False,
        "scale_scores": False,
        "embedding_scale": False,
        "head_width": 5,
    },
    "biases per layer": {"relative_positions": "layer", "position_buckets": 8},
    "t5 1.1": {
        "norm_kind": "rms",
        "positions": "none",
        "relative_positions": "stack",
        "biases": False,
        "scale_scores": False,
        "gated": True,
        "activation": "gelu_tanh",
        "embedding_scale": False,
    },
}
