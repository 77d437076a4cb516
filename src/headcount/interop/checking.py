"""What every import and export must pass: its packages are there, and both models agree."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from headcount.data.batches import padded
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.run import Run

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


LIMIT = 1e-4
"""How far apart logits of the same model may be in float32."""

LENGTHS = (1, 3, 6, 10, 17, 24)


class Sample(NamedTuple):
    """Sentences to compare two models on.

    `sentences` are source tokens without EOS; `source` `[batch, source]` the same with EOS,
    `target` `[batch, target]` decoder inputs that begin with the start token; both padded. `real`
    `[batch, target]` is true where a decoder input is not padding: outputs at padding do not
    matter.
    """

    sentences: list[list[int]]
    source: Tensor
    target: Tensor
    real: Tensor


def make_sample(run: Run, lines: Sequence[str] = (), seed: int = 1) -> Sample:
    """Random tokens in sentences of several lengths, and `lines`.

    Random tokens reach every part of a model as well as real ones do. Targets are random.
    """
    rng = torch.Generator().manual_seed(seed)
    most = run.config.model.max_positions - 1
    source, target = run.source_tokenizer, run.target_tokenizer
    most -= max(len(side.before) + len(side.after) for side in (source, target))
    texts = [_random_tokens(source, min(size, most), rng) for size in LENGTHS]
    texts += [tokens[:most] for line in lines if (tokens := source.inside(line))]
    sentences = [source.framed(tokens) for tokens in texts]
    sizes = [min(LENGTHS[-1 - i % len(LENGTHS)], most) for i in range(len(sentences))]
    targets = [[target.start, *target.framed(_random_tokens(target, size, rng))] for size in sizes]
    sources = [[*tokens, source.eos] for tokens in sentences]
    inputs = padded(targets, target.pad)
    real = torch.arange(inputs.shape[1]) < torch.tensor([len(row) for row in targets])[:, None]
    return Sample(sentences, padded(sources, source.pad), inputs, real)


@torch.no_grad()
def own_logits(run: Run, sample: Sample) -> Tensor:
    """What a run gives on a sample: logits `[tokens, vocabulary]` of all real target tokens.

    Of an encoder alone, those of all source tokens or of its classes, or its output where it has
    no logits.
    """
    model, real = run.model, sample.source != run.model.pad
    if not model.config.predicts:
        return model.encode(sample.source)[0][real]
    logits: Tensor = model(sample.source, sample.target)
    if model.config.classes:
        return logits[:, 0]
    return logits[sample.real if model.config.decoder_layers else real]


def largest_difference(ours: Tensor, theirs: Tensor, limit: float, what: str) -> float:
    """The largest difference of two tensors, which must be below a limit."""
    difference = float((ours - theirs).abs().max())
    if not difference <= limit:  # also where it is not a number
        raise UserError(
            f"The {what} gives other numbers than the run: they differ by {difference:.2g},"
            f" allowed is {limit:.0e}. Nothing was written.",
            "Please report this with the run's config.yaml.",
        )
    return difference


def refuse_existing(out: Path) -> None:
    """Stop if `out` exists: imports and exports never overwrite anything."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} exists already.", "Choose another --out.")


def _random_tokens(tokenizer: Tokenizer, count: int, rng: torch.Generator) -> list[int]:
    special = {tokenizer.pad, tokenizer.start, tokenizer.eos, *tokenizer.before, *tokenizer.after}
    tokens: list[int] = []
    while len(tokens) < count:
        token = int(torch.randint(tokenizer.size, (1,), generator=rng))
        if token not in special:
            tokens.append(token)
    return tokens
