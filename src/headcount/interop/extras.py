"""Packages that only some formats need, and a clear message if one is missing."""

from __future__ import annotations

from importlib import import_module

from headcount.errors import UserError

EXTRAS = {
    "marian": ("transformers", "sentencepiece", "google.protobuf"),
    "ctranslate2": ("ctranslate2",),
    "onnx": ("onnx", "onnxruntime"),
    "explore": ("starlette", "uvicorn"),
}


def require_extra(extra: str) -> None:
    """Make sure that the packages of an extra can be imported."""
    for package in EXTRAS[extra]:
        try:
            import_module(package)
        except ImportError as error:
            raise UserError(
                f"This needs {package}, which cannot be imported ({error}).",
                f"Install it: pip install 'headcount[{extra}]'.",
            ) from error
