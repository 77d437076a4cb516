"""A run as a folder that its family's class of `transformers` loads.

These families have the same heads and the same width in every layer: pruned heads come back as
heads of zeros, and feed-forward networks are as wide as the widest one. Blocks that are gone make
the model shallower where others can take their places, else they are zeros too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from headcount.errors import UserError
from headcount.interop.checking import LIMIT, largest_difference, make_sample, own_logits
from headcount.interop.families import FAMILIES, Family
from headcount.interop.families.adapter import Checkpoint, to_theirs
from headcount.interop.importing import quieten
from headcount.interop.search_settings import generation_settings
from headcount.model.gating import full_heads, narrowed, repacked
from headcount.model.transformer import Transformer, full_layout
from headcount.run import Run

_MIXED_TEXT = "This is a test, isn't it? Yes: 1,234.5 «ça va» (œuvre) – done…"

_NO_WEIGHTS = ("embed_positions", "final_logits_bias")
"""Of their models: what is computed, or zero where a run has none."""


def family_of_run(run: Run) -> Family:
    """The family that a run comes from; what headcount has trained can only be MarianMT."""
    return FAMILIES.find(run.config.model.family or "marian")


def write_transformers(run: Run, folder: Path, family: Family) -> tuple[Transformer, list[str]]:
    """Write the model; what was written, with its zeros, and notes on what differs."""
    import transformers

    quieten()
    adapter = family.adapter
    model = run.model
    if model.heads != full_layout(model.config):
        model = full_heads(narrowed(repacked(model), adapter.one_width))
        config_of_run = run.config.model_copy(update={"model": model.config})
        run = replace(run, config=config_of_run, model=model)
    settings, notes = adapter.settings(run)
    generation, more_notes = generation_settings(run)
    config = getattr(transformers, adapter.config_class)(**settings)
    checkpoint = Checkpoint(str(folder), config, lambda name: None)
    name, options = adapter.class_for(checkpoint), adapter.load_options(checkpoint)
    theirs = getattr(transformers, name)(config, **options).eval()
    adapter.prepare(theirs, model.config)
    state = to_theirs(model.state_dict(), adapter, model.config)
    missing, unexpected = theirs.load_state_dict(state, strict=False)
    own = {name for name, _ in theirs.named_parameters()}  # tied ones have one name
    absent = [n for n in missing if n in own and not any(part in n for part in _NO_WEIGHTS)]
    if set(absent) - {"model.shared.weight", "shared.weight"} or unexpected:
        raise ValueError(f"names of weights do not match: {[*absent, *unexpected]}")
    if model.config.decoder_layers:
        theirs.generation_config = transformers.GenerationConfig(**generation)
    theirs.save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.chmod((folder / "config.json").stat().st_mode)  # safetensors makes its files private
    notes = [*notes, *(more_notes if model.config.decoder_layers else ())]
    notes += adapter.write_tokenizers(run, folder)
    return model, notes


@torch.inference_mode()
def check_transformers(run: Run, folder: Path, lines: Sequence[str], family: Family) -> float:
    """Load the written model and tokeniser and compare logits, and the ids of lines."""
    import transformers

    _check_tokenizer(run, folder, [_MIXED_TEXT, *lines])
    adapter = family.adapter
    config = getattr(transformers, adapter.config_class).from_pretrained(folder)
    checkpoint = Checkpoint(str(folder), config, lambda name: None)
    theirs = getattr(transformers, adapter.class_for(checkpoint)).from_pretrained(
        folder, dtype=torch.float32, **adapter.load_options(checkpoint)
    )
    sample = make_sample(run, lines)
    logits = adapter.logits(theirs.eval(), sample, run.model.pad)
    return largest_difference(logits, own_logits(run, sample), LIMIT, f"{family.name} model")


def _check_tokenizer(run: Run, folder: Path, lines: Sequence[str]) -> None:
    """Compare the written tokeniser with the run's, if it could be written."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer_config.json").exists():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises a package that neither of us uses
        theirs = AutoTokenizer.from_pretrained(folder)
    source = run.source_tokenizer
    for line in lines:
        ids = source.encode(line)
        if ids and list(theirs(line).input_ids) != [*ids, source.eos]:
            raise UserError(
                f"The written tokeniser cuts this line differently: {line!r}. Nothing was written.",
                "Please report this with the run's tokenizer.src.json.",
            )
