"""How a model of `transformers` is meant to be searched, as settings of a run, and back.

Hugging Face scores a hypothesis by its log-probability over `length ** length_penalty`, where this
package's own default is the penalty of Wu et al. (2016); an imported run keeps the former.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from headcount.config import Config, DataConfig, ModelConfig, SearchConfig
from headcount.errors import UserError
from headcount.run import Run
from headcount.yaml_reading import readable_error

# Of a generation configuration: settings that change translations and that the search here does
# not have, with the value that means "off".
_NOT_KEPT = {
    "do_sample": False,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beam_groups": 1,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def model_config(
    settings: dict[str, Any], where: str = "config.json", **changes: Any
) -> ModelConfig:
    """Settings that were read from the file `where`, validated."""
    try:
        return ModelConfig.model_validate({**settings, **changes})
    except ValidationError as error:
        raise readable_error(error, where, ModelConfig) from error


def search_config(generation: Any, positions: int) -> tuple[SearchConfig, list[str]]:
    """How the model is meant to be searched, and a note for each setting that is not kept."""
    notes = []
    limit = _given(generation, "max_new_tokens", 0) or _given(generation, "max_length", 0) - 1
    if limit < 1:
        limit = positions
        notes.append("no longest output is given; the limit is the number of the model's positions")
    bad_words = _given(generation, "bad_words_ids", [])
    if not all(isinstance(word, list) for word in bad_words):
        raise UserError(
            f"generation_config.json: bad_words_ids = {bad_words} are not lists of tokens.",
            "Change the value.",
        )
    if any(len(word) > 1 for word in bad_words):
        notes.append("bad words of more than one token may be generated")
    length_penalty = _given(generation, "length_penalty", 1.0)
    if length_penalty < 0:
        notes.append(f"length_penalty = {length_penalty} is below zero and not supported; it is 0")
    early_stopping = _given(generation, "early_stopping", False)
    if not isinstance(early_stopping, bool):
        notes.append(f"early_stopping = {early_stopping} is not supported; it is off")
    for name, off in _NOT_KEPT.items():
        if _given(generation, name, off) != off:
            notes.append(f"{name} = {getattr(generation, name)} is not supported and left out")
    settings = {
        "beam": _given(generation, "num_beams", 1),
        "length_penalty": max(0.0, length_penalty),
        "normalisation": "length",
        "max_ratio": 0.0,
        "max_extra": min(limit, positions),
        "min_length": max(0, _given(generation, "min_length", 0) - 1),  # theirs counts the start
        "early_stop": early_stopping is True,
        "force_end": _given(generation, "forced_eos_token_id", None) is not None,
        "forbidden": sorted({word[0] for word in bad_words if len(word) == 1}),
        "renormalise": _given(generation, "renormalize_logits", False),
    }
    try:
        return SearchConfig.model_validate(settings), notes
    except ValidationError as error:
        raise readable_error(error, "generation_config.json", SearchConfig) from error


def run_config(
    model: ModelConfig, search: SearchConfig, languages: tuple[str, str], sizes: tuple[int, int]
) -> Config:
    """The configuration of an imported run: without recipe and corpus, but ready for use."""
    data = DataConfig(
        corpus=None,
        source=languages[0],
        target=languages[1],
        source_vocabulary=sizes[0],
        target_vocabulary=sizes[1],
        max_length=model.max_positions - 1,
    )
    return Config(data=data, model=model, search=search)


def generation_settings(run: Run) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the `GenerationConfig` of a run, and notes on what differs."""
    search, target = run.config.search, run.target_tokenizer
    notes = []
    if search.normalisation != "length":
        notes.append(
            "transformers divides scores by length ** penalty, this run by Wu et al.'s formula;"
            " beam search there prefers other lengths"
        )
    first = run.config.model.first_tokens
    if len(first) > 1:
        notes.append("transformers can force one first token only; this run has several")
    banned = sorted({target.pad, target.start, *search.forbidden} - {target.eos})
    longest = run.config.model.max_positions if search.max_ratio else search.max_extra + 1
    return {
        "num_beams": search.beam,
        # transformers refuses to save a penalty without a beam.
        "length_penalty": search.length_penalty if search.beam > 1 else None,
        "max_length": longest,
        "min_length": search.min_length + 1 if search.min_length else 0,
        "bad_words_ids": [[token] for token in banned],
        "early_stopping": search.early_stop if search.beam > 1 else None,
        "renormalize_logits": search.renormalise,
        "pad_token_id": target.pad,
        "eos_token_id": target.eos,
        "decoder_start_token_id": target.start,
        "forced_eos_token_id": target.eos if run.config.search.force_end else None,
        "forced_bos_token_id": first[0] if len(first) == 1 else None,
    }, notes


def _given(generation: Any, name: str, default: Any) -> Any:
    value = getattr(generation, name, None)
    return default if value is None else value
