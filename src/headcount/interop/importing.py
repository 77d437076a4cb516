"""`headcount import`: a model of Hugging Face `transformers`, Marian or Argos becomes a run.

Weights are read from safetensors where there are any, else from a pickle that may hold nothing
but tensors (`weights_only`). No code that comes with a model is ever run.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from headcount.config import SearchConfig
from headcount.errors import UserError
from headcount.files import atomic_folder, owned, parsing
from headcount.interop.argos_import import argos_difference, argos_run, is_argos
from headcount.interop.checking import (
    LIMIT,
    largest_difference,
    make_sample,
    own_logits,
    refuse_existing,
    require_extra,
)
from headcount.interop.families import Family, family_of, supported
from headcount.interop.families.adapter import (
    CLASSIFIES,
    MASKED,
    OUTPUT_BIAS,
    Checkpoint,
    Languages,
    Tokenizers,
    from_theirs,
    tie_of,
)
from headcount.interop.marian_file import find_marian_file
from headcount.interop.marian_import import marian_run
from headcount.interop.search_settings import model_config, run_config, search_config
from headcount.model.embedding import sinusoids
from headcount.model.transformer import blank_model
from headcount.progress import Progress, silent
from headcount.run import Run, all_finite, load_run


@dataclass(frozen=True)
class Imported:
    """A run, notes on what it does not keep of the model, and the largest difference of logits.

    There is no difference where there is no other program to compare with: Marian's own files.
    """

    run: Run
    notes: list[str]
    difference: float | None


def import_run(
    name: Path | str,
    out: Path | str,
    *,
    languages: tuple[str, str] | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
    prefix: str = "",
    progress: Progress = silent,
) -> Imported:
    """Make a run of a model of transformers (OPUS-MT, NLLB, BART, T5, ...), Marian or Argos.

    `name` is a folder of this machine, or a name on the hub. A folder may also hold a model file of
    the Marian toolkit itself (`headcount.interop.marian_import`), with which nothing is compared,
    or a package of Argos Translate (`argos_import`), which is compared with CTranslate2.

    The new run is loaded again and compared with the model before `out` exists; its logits must
    be the same to 1e-4. Languages (`languages` is both at once) are needed where a model knows
    many, or does not say its own. `prefix` is text in front of every source sentence (T5).
    """
    require_extra("marian")
    out = Path(out)
    refuse_existing(out)
    progress("Reading the model", 0, 3)
    pair = languages or (source_language, target_language)
    foreign = _foreign_run(Path(name), Languages(*pair, prefix), out)
    if foreign is not None:
        with owned(out), atomic_folder(out) as folder:
            foreign.run.save(folder)
        progress("Reading the model", 3, 3)
        return foreign
    with parsing(Path(name), "Fetch the model again."):  # settings of any type, any vocabulary
        family, checkpoint = _open(str(name))
        tokenizers = family.adapter.tokenizers(checkpoint, Languages(*pair, prefix))
        theirs = _load_model(checkpoint, family)
        progress("Reading the model", 1, 3)
        run, notes = _convert(theirs, family, tokenizers, out)
        sample = make_sample(run)
    with torch.no_grad():
        expected = family.adapter.logits(theirs, sample, run.model.pad)
    with owned(out), atomic_folder(out) as folder:
        run.save(folder)
        del run, theirs  # one copy of the weights at a time
        progress("Reading the model", 2, 3)
        loaded = load_run(folder)
        difference = largest_difference(own_logits(loaded, sample), expected, LIMIT, "model")
    loaded.folder = out
    progress("Reading the model", 3, 3)
    return Imported(loaded, [*tokenizers.notes, *notes], difference)


def _foreign_run(folder: Path, languages: Languages, out: Path) -> Imported | None:
    """A model of another toolkit than transformers, in memory, if the folder holds one."""
    marian = find_marian_file(folder)
    if languages.prefix and (marian or is_argos(folder)):
        raise UserError("--prefix is for models of transformers.", "Leave it out.")
    if marian is not None:
        run, notes = marian_run(marian, languages, out)
        return Imported(run, notes, None)
    if is_argos(folder):
        require_extra("ctranslate2")
        run, notes = argos_run(folder, languages, out)
        return Imported(run, notes, argos_difference(run, folder, make_sample(run)))
    return None


def parse_languages(text: str) -> tuple[str, str]:
    """`en-fr` as a pair."""
    source, dash, target = text.strip().partition("-")
    if not (source and dash and target):
        raise UserError(f"'{text}' are not two languages.", "Write them as source-target: en-fr.")
    return source, target


def _open(name: str) -> tuple[Family, Checkpoint]:
    """The model's family, its configuration, and a function that finds its other files."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from transformers.utils import cached_file

    quieten()
    local = Path(name).is_dir()
    try:
        settings, _ = transformers.PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        raise _missing(name, local, error) from error
    if not isinstance(settings, dict) or not settings:
        raise UserError(f"{name} holds no model: it has no config.json with settings.", supported())
    family = family_of(name, str(settings.get("model_type") or "unknown"))
    try:
        config = getattr(transformers, family.adapter.config_class).from_dict(settings)
    except (StrictDataclassError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(
            f"{name}: config.json is not one of {family.help} ({reason}).", supported()
        ) from error

    def find(file: str) -> Path | None:
        try:
            path = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise _missing(name, local, error) from error
        return None if path is None else Path(path)

    checkpoint = Checkpoint(name, config, find)
    family.adapter.refuse(checkpoint)
    return family, checkpoint


def _missing(name: str, local: bool, error: Exception) -> UserError:
    reason = str(error).splitlines()[0].rstrip(".")
    if local:
        return UserError(f"{name} holds no model ({reason}).", supported())
    return UserError(
        f"{name} is not a folder here, and the Hugging Face hub does not provide it ({reason}).",
        "Check the name and the connection, or give a folder that holds the model.",
    )


def _load_model(checkpoint: Checkpoint, family: Family) -> Any:
    """transformers' own model, in float32, on the CPU."""
    import transformers

    name = checkpoint.name
    try:
        model, info = getattr(transformers, family.adapter.class_for(checkpoint)).from_pretrained(
            name,
            **family.adapter.load_options(checkpoint),
            config=checkpoint.config,
            dtype=torch.float32,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except (pickle.UnpicklingError, safetensors.SafetensorError, EOFError) as error:
        # torch's own message explains how to load the pickle anyway, which nobody should.
        raise UserError(
            f"The weights of {name} are damaged, or hold more than tensors, which is never loaded.",
            "Fetch them again, best as safetensors.",
        ) from error
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".").removeprefix("Error ")
        raise UserError(
            f"The weights of {name} cannot be read ({reason}).", "Fetch all of its files again."
        ) from error
    except (RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The model {name} cannot be read ({reason}).", supported()) from error
    absent = sorted(info["missing_keys"]) or sorted(key for key, *_ in info["mismatched_keys"])
    if absent:
        raise UserError(
            f"The weights of {name} do not fit its config.json (first difference: {absent[0]}).",
            "The files do not belong together; fetch them again.",
        )
    broken = [key for key, tensor in model.state_dict().items() if not all_finite(tensor)]
    if broken:
        raise UserError(
            f"The weights of {name} are not all finite numbers (first: {broken[0]}).",
            "Fetch them again.",
        )
    return model.eval()


def _convert(
    theirs: Any, family: Family, tokenizers: Tokenizers, out: Path
) -> tuple[Run, list[str]]:
    """The run of a model, in memory."""
    state, adapter = theirs.state_dict(), family.adapter
    settings = adapter.model_settings(theirs.config)
    settings["output_network"] = type(theirs).__name__.endswith(MASKED)
    if type(theirs).__name__.endswith(CLASSIFIES):
        settings["classes"] = tuple(map(str, theirs.config.id2label.values()))
    shape = model_config(settings)
    bias = state.get(adapter.names(OUTPUT_BIAS, shape)[0])
    generation = getattr(theirs, "generation_config", None)
    forced = getattr(generation, "forced_bos_token_id", None)
    config = model_config(
        settings,
        tie=tie_of(state, adapter, shape),
        output_bias=bias is not None and bool(bias.any()),
        first_tokens=tokenizers.first_tokens or (() if forced is None else (forced,)),
        family=family.name,
    )
    search, notes = SearchConfig(), list[str]()
    if config.decoder_layers:
        search, notes = search_config(generation, config.max_positions)
    lost = [name for name in theirs.config.architectures or () if "For" in name]
    if lost and not config.predicts:
        notes.append(f"the head of {lost[0]} is not kept: the run is an encoder without outputs")
    source, target = tokenizers.source, tokenizers.target
    if max(search.forbidden, default=0) >= target.size:
        raise UserError(
            f"generation_config.json: bad_words_ids has token {search.forbidden[-1]}, but the"
            f" vocabulary only {target.size}.",
            "The files do not belong together; fetch them again.",
        )
    if config.positions == "sinusoidal" and config.position_offset == 0:
        _check_positions(state)
    model = blank_model(config, source.size, target.size, source.pad, None, target.pad)
    own = dict(model.named_parameters())
    converted = from_theirs(state, list(own), adapter, config, theirs.config)
    for name, tensor in converted.items():
        if tensor.shape != own[name].shape:
            raise ValueError(f"{name} is {list(tensor.shape)}, not {list(own[name].shape)}")
        own[name].data = tensor.detach()  # shared with the model that was read, not copied
    full = run_config(config, search, tokenizers.languages, (source.size, target.size))
    return Run(out, full, model.eval(), source, target), notes


def _check_positions(state: dict[str, Tensor]) -> None:
    """Positions are computed, not read: a model that has learned its own cannot be imported."""
    for side in ("encoder", "decoder"):
        positions = state[f"model.{side}.embed_positions.weight"]
        if not torch.allclose(positions, sinusoids(*positions.shape), atol=1e-5):
            raise UserError(
                f"The {side}'s positions are not the usual sines and cosines.", supported()
            )


def quieten() -> None:
    """Silence transformers and the hub, which print bars and advice."""
    import huggingface_hub
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
