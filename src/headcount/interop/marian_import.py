"""`headcount import`: a MarianMT model of Hugging Face `transformers` becomes a run.

Weights are read from safetensors where there are any, else from a pickle that may hold nothing
but tensors (`weights_only`). Nothing that comes with a model is ever run.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch

from headcount.errors import UserError
from headcount.files import atomic_folder
from headcount.interop.checking import (
    LIMIT,
    Sample,
    largest_difference,
    make_sample,
    refuse_existing,
)
from headcount.interop.extras import require_extra
from headcount.interop.marian_config import model_config, run_config, search_config
from headcount.interop.marian_tokenizers import Find, read_languages, read_tokenizers
from headcount.interop.marian_weights import BIAS, from_marian, tie_of
from headcount.model.positions import sinusoids
from headcount.model.transformer import Transformer
from headcount.progress import Progress, silent
from headcount.run import Run, load_run

SUPPORTED = "Supported: MarianMT (model type 'marian'), such as Helsinki-NLP/opus-mt-en-fr."


@dataclass(frozen=True)
class Imported:
    """A run, what of the model it did not keep, and how far its logits are from the model's."""

    run: Run
    notes: list[str]
    difference: float


def import_run(
    name: Path | str,
    out: Path | str,
    *,
    languages: tuple[str, str] | None = None,
    progress: Progress = silent,
) -> Imported:
    """Make a run of a MarianMT model: a folder of this machine, or a name on the hub.

    The new run is loaded again and compared with the model before `out` exists; its logits must
    be the same to 1e-4. `languages` are needed only where the model does not say its own.
    """
    require_extra("marian")
    out = Path(out)
    refuse_existing(out)
    progress("Reading the model", 0, 3)
    marian, find = _open(str(name))
    languages = languages or read_languages(find, str(name))
    if languages is None:
        raise UserError(
            f"{name} does not say its languages.", "Give them, as in --languages en-fr."
        )
    theirs = _load_model(str(name), marian)
    progress("Reading the model", 1, 3)
    run, notes = _convert(theirs, find, languages, out)
    with atomic_folder(out) as folder:
        run.save(folder)
        progress("Reading the model", 2, 3)
        loaded = load_run(folder)
        difference = _compare(theirs, loaded)
    loaded.folder = out
    progress("Reading the model", 3, 3)
    return Imported(loaded, notes, difference)


def parse_languages(text: str) -> tuple[str, str]:
    """`en-fr` as a pair."""
    source, dash, target = text.strip().partition("-")
    if not (source and dash and target):
        raise UserError(f"'{text}' are not two languages.", "Write them as source-target: en-fr.")
    return source, target


def _open(name: str) -> tuple[Any, Find]:
    """The model's configuration, and a function that finds its other files."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import MarianConfig, PreTrainedConfig
    from transformers.utils import cached_file

    quieten()
    local = Path(name).is_dir()
    try:
        given, _ = PreTrainedConfig.get_config_dict(name)
    except (OSError, ValueError) as error:
        raise _missing(name, local, error) from error
    if not isinstance(given, dict) or not given:
        raise UserError(f"{name} holds no model: it has no config.json with settings.", SUPPORTED)
    if given.get("model_type") != "marian":
        kind = given.get("model_type") or "unknown"
        raise UserError(f"{name} is a model of the type '{kind}'.", SUPPORTED)
    try:
        marian = MarianConfig.from_dict(given)
    except StrictDataclassError as error:
        reason = str(error).splitlines()[-1].strip()
        raise UserError(f"{name}: config.json is no MarianMT's ({reason}).", SUPPORTED) from error
    _check(name, marian)

    def find(file: str) -> Path | None:
        try:
            found = cached_file(name, file, _raise_exceptions_for_missing_entries=False)
        except OSError as error:
            raise _missing(name, local, error) from error
        return None if found is None else Path(found)

    return marian, find


def _missing(name: str, local: bool, error: Exception) -> UserError:
    reason = str(error).splitlines()[0].rstrip(".")
    if local:
        return UserError(f"{name} holds no model ({reason}).", SUPPORTED)
    return UserError(
        f"{name} is no folder here, and the Hugging Face hub does not give it ({reason}).",
        "Check the name and the connection, or give a folder that holds the model.",
    )


def _check(name: str, marian: Any) -> None:
    """Refuse what a MarianMT configuration could say and transformers' own model does not do."""
    if isinstance(marian.eos_token_id, list):
        if len(marian.eos_token_id) != 1:
            raise UserError(f"{name} has several ends of sentence.", "Only one is supported.")
        marian.eos_token_id = marian.eos_token_id[0]
    for setting in ("normalize_before", "normalize_embedding", "add_final_layer_norm"):
        if getattr(marian, setting, False):
            raise UserError(f"{name} has {setting}, which MarianMT models do not have.", SUPPORTED)
    for setting in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
        token = getattr(marian, setting)
        if token is None:
            raise UserError(f"{name} does not say its {setting}.", "Mend its config.json.")
        if not 0 <= token < min(marian.vocab_size, marian.decoder_vocab_size or marian.vocab_size):
            raise UserError(
                f"{name} has {setting} {token}, which is not in its vocabulary of"
                f" {marian.vocab_size}.",
                "Mend its config.json.",
            )
    for setting in ("encoder_attention_heads", "decoder_attention_heads"):
        if getattr(marian, setting) < 1:
            raise UserError(
                f"{name} has {setting} {getattr(marian, setting)}.", "Mend its config.json."
            )


def _load_model(name: str, marian: Any) -> Any:
    """transformers' own model, in float32, on the CPU."""
    from transformers import MarianMTModel

    try:
        model, info = MarianMTModel.from_pretrained(
            name,
            config=marian,
            dtype=torch.float32,
            weights_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    except (pickle.UnpicklingError, safetensors.SafetensorError, EOFError) as error:
        # torch's own words tell how to run what is in a pickle all the same.
        raise UserError(
            f"The weights of {name} are damaged, or hold more than tensors, which is never run.",
            "Fetch them again, best as safetensors.",
        ) from error
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"The model {name} cannot be read ({reason}).", SUPPORTED) from error
    absent = sorted(info["missing_keys"]) or sorted(key for key, *_ in info["mismatched_keys"])
    if absent:
        raise UserError(
            f"The weights of {name} do not fit its config.json (first difference: {absent[0]}).",
            "The files do not belong together; fetch them again.",
        )
    broken = [key for key, tensor in model.state_dict().items() if not tensor.isfinite().all()]
    if broken:
        raise UserError(
            f"The weights of {name} are not all finite numbers (first: {broken[0]}).",
            "Fetch them again.",
        )
    return model.eval()


def _convert(theirs: Any, find: Find, languages: tuple[str, str], out: Path) -> tuple[Run, list]:
    """The run of a MarianMT model, in memory."""
    state = theirs.state_dict()
    marian = theirs.config
    config = model_config(marian, tie_of(state), output_bias=bool(state[BIAS].any()))
    search, notes = search_config(theirs.generation_config, config.max_positions)
    source, target = read_tokenizers(find, marian)
    if max(search.forbidden, default=0) >= target.size:
        raise UserError(
            f"generation_config.json: bad_words_ids has token {search.forbidden[-1]}, but the"
            f" vocabulary only {target.size}.",
            "The files do not belong together; fetch them again.",
        )
    model = Transformer(config, source.size, target.size, source.pad, None, target.pad)
    _check_positions(state)
    model.load_state_dict(from_marian(state, config))
    full = run_config(config, search, languages, (source.size, target.size))
    return Run(out, full, model.eval(), source, target), notes


def _check_positions(state: dict[str, torch.Tensor]) -> None:
    """Positions are computed, not read: a model that has learned its own cannot be imported."""
    for side in ("encoder", "decoder"):
        positions = state[f"model.{side}.embed_positions.weight"]
        if not torch.allclose(positions, sinusoids(*positions.shape), atol=1e-5):
            raise UserError(
                f"The {side}'s positions are not the usual sines and cosines.", SUPPORTED
            )


@torch.no_grad()
def _compare(theirs: Any, run: Run) -> float:
    """The largest difference between the logits of both models."""
    sample = make_sample(run)
    expected = marian_logits(theirs, sample, run.model.pad)
    return largest_difference(run.model(sample.source, sample.target), expected, LIMIT, "model")


def marian_logits(theirs: Any, sample: Sample, pad: int) -> torch.Tensor:
    """Logits `[batch, target, vocabulary]` of transformers' own model."""
    logits: torch.Tensor = theirs(
        input_ids=sample.source,
        attention_mask=(sample.source != pad).long(),
        decoder_input_ids=sample.target,
        use_cache=False,
    ).logits
    return logits


def quieten() -> None:
    """transformers and the hub print bars and advice where we print one line."""
    import huggingface_hub
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    huggingface_hub.utils.logging.set_verbosity_error()
