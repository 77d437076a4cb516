"""A run as a folder that `transformers.MarianMTModel.from_pretrained` loads.

MarianMT has the same heads in every layer; pruned ones come back as heads of zeros.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from headcount.errors import UserError
from headcount.interop.checking import LIMIT, largest_difference, make_sample
from headcount.interop.marian_config import generation_settings, marian_settings
from headcount.interop.marian_import import marian_logits, quieten
from headcount.interop.marian_tokenizers import write_tokenizers
from headcount.interop.marian_weights import to_marian
from headcount.interop.padding import full_heads
from headcount.interop.plain_tokenizers import write_plain_tokenizers
from headcount.run import Run

_MIXED_TEXT = "This is a test, isn't it? Yes: 1,234.5 «ça va» (œuvre) – done…"


def write_marian(run: Run, folder: Path) -> tuple[int, list[str]]:
    """Write the model; how many heads of zeros it needed, and notes on what differs."""
    from transformers import GenerationConfig, MarianConfig, MarianMTModel

    quieten()
    settings = marian_settings(run)
    generation, notes = generation_settings(run)
    model = full_heads(run.model)
    theirs = MarianMTModel(MarianConfig(**settings)).eval()
    missing, unexpected = theirs.load_state_dict(to_marian(model), strict=False)
    absent = [name for name in missing if "embed_positions" not in name]
    if absent or unexpected:
        raise ValueError(f"names of weights do not match: {[*absent, *unexpected]}")
    theirs.generation_config = GenerationConfig(**generation)
    theirs.save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.chmod((folder / "config.json").stat().st_mode)  # safetensors makes its files private
    if not write_tokenizers(run, folder):
        write_plain_tokenizers(run, folder)
        notes.append(
            "this run's tokenisers are no SentencePiece models; they are written for the"
            " tokenizers library"
        )
    return len(model.head_list()) - len(run.model.head_list()), notes


@torch.inference_mode()
def check_marian(run: Run, folder: Path, lines: Sequence[str]) -> float:
    """Load the written model and tokeniser and compare logits, and the ids of lines."""
    from transformers import MarianMTModel

    _check_tokenizer(run, folder, [_MIXED_TEXT, *lines])
    theirs = MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    sample = make_sample(run, lines)
    expected = run.model(sample.source, sample.target)
    logits = marian_logits(theirs, sample, run.model.pad)
    return largest_difference(logits, expected, LIMIT, "MarianMT model")


def _check_tokenizer(run: Run, folder: Path, lines: Sequence[str]) -> None:
    """Compare the written tokeniser with the run's, if it could be written."""
    from transformers import MarianTokenizer

    if run.source_tokenizer.vocabulary is None:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises a package that neither of us uses
        theirs = MarianTokenizer.from_pretrained(folder)
    for line in lines:
        if theirs(line).input_ids[:-1] != run.source_tokenizer.encode(line):  # theirs has EOS
            raise UserError(
                f"The written tokeniser cuts this line otherwise: {line!r}. Nothing was written.",
                "Please report this with the run's tokenizer.src.json.",
            )
