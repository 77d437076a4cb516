"""Settings of a MarianMT model as those of a run, and back.

Hugging Face scores a hypothesis by its log-probability over `length ** length_penalty`, where this
package's own default is the penalty of Wu et al. (2016); an imported run keeps the former.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from headcount.config import Config, DataConfig, ModelConfig, SearchConfig, readable_error
from headcount.errors import UserError
from headcount.run import Run

ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}

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
    "forced_bos_token_id": None,
}


def model_config(marian: Any, tie: str, output_bias: bool) -> ModelConfig:
    """The size and shape of a MarianMT model; which matrices are tied is seen in its weights."""
    if marian.activation_function not in ACTIVATIONS:
        raise UserError(
            f"The activation {marian.activation_function!r} is not supported.",
            f"Supported: {', '.join(sorted(ACTIVATIONS))}.",
        )
    settings = {
        "encoder_layers": marian.encoder_layers,
        "decoder_layers": marian.decoder_layers,
        "heads": marian.encoder_attention_heads,
        "decoder_heads": _unless(marian.decoder_attention_heads, marian.encoder_attention_heads),
        "width": marian.d_model,
        "ff_width": marian.encoder_ffn_dim,
        "decoder_ff_width": _unless(marian.decoder_ffn_dim, marian.encoder_ffn_dim),
        "activation": ACTIVATIONS[marian.activation_function],
        "norm": "post",  # MarianMT in transformers has no other
        "dropout": marian.dropout,
        "attention_dropout": marian.attention_dropout,
        "activation_dropout": marian.activation_dropout,
        "embedding_scale": marian.scale_embedding,
        "tie": tie,
        "output_bias": output_bias,
        "max_positions": marian.max_position_embeddings,
    }
    try:
        return ModelConfig.model_validate(settings)
    except ValidationError as error:
        raise readable_error(error, "config.json", ModelConfig) from error


def search_config(generation: Any, positions: int) -> tuple[SearchConfig, list[str]]:
    """How the model is meant to be searched, and a note for each thing that is not kept."""
    notes = []
    limit = _given(generation, "max_new_tokens", 0) or _given(generation, "max_length", 0) - 1
    if limit < 1:
        limit = positions
        notes.append("no longest output is given; it is as many tokens as the model has positions")
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
    """The configuration of an imported run: no recipe, no corpus, but all that use needs."""
    data = DataConfig(
        corpus=None,
        source=languages[0],
        target=languages[1],
        source_vocabulary=sizes[0],
        target_vocabulary=sizes[1],
        max_length=model.max_positions - 1,
    )
    return Config(data=data, model=model, search=search)


def marian_settings(run: Run) -> dict[str, Any]:
    """The arguments of the `MarianConfig` of a run."""
    config = run.config.model
    own = [
        name
        for name in ("position_base", "position_scale", "shortest_wavelength")
        if getattr(config, name) != ModelConfig.model_fields[name].default
    ]
    if own:
        raise UserError(
            f"{run.folder} has positions of its own (model.{', model.'.join(own)}).",
            "Export it to ctranslate2 or onnx.",
        )
    if config.norm != "post":
        raise UserError(
            f"{run.folder} is a pre-norm model; MarianMT in transformers is always post-norm.",
            "Export it to ctranslate2 or onnx, or train with model.norm=post.",
        )
    if any(config.heads_at(s) * config.head_width_at(s) != config.width for s in ("enc", "dec")):
        raise UserError(
            f"{run.folder} has heads of a width of their own, which MarianMT has not.",
            "Export it to ctranslate2 or onnx.",
        )
    source, target = run.source_tokenizer, run.target_tokenizer
    if source.pad != target.pad or source.eos != target.eos:
        raise UserError(
            f"{run.folder} has other special tokens on each side; MarianMT has one set.",
            "Export it to ctranslate2 or onnx.",
        )
    return {
        "vocab_size": source.size,
        "decoder_vocab_size": target.size,
        "max_position_embeddings": config.max_positions,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads_at("enc"),
        "decoder_attention_heads": config.heads_at("dec"),
        "encoder_ffn_dim": config.ff_width_at("enc_ff"),
        "decoder_ffn_dim": config.ff_width_at("dec_ff"),
        "d_model": config.width,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": config.embedding_scale,
        "pad_token_id": target.pad,
        "eos_token_id": target.eos,
        "decoder_start_token_id": target.start,
        "forced_eos_token_id": target.eos if run.config.search.force_end else None,
        "share_encoder_decoder_embeddings": config.tie in ("inputs", "all"),
        "tie_word_embeddings": config.tie in ("target", "all"),
    }


def generation_settings(run: Run) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the `GenerationConfig` of a run, and notes on what differs."""
    search, target = run.config.search, run.target_tokenizer
    notes = []
    if search.normalisation != "length":
        notes.append(
            "transformers divides scores by length ** penalty, this run by Wu et al.'s formula;"
            " beam search there prefers other lengths"
        )
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
    }, notes


def _given(generation: Any, name: str, default: Any) -> Any:
    value = getattr(generation, name, None)
    return default if value is None else value


def _unless(value: int, same: int) -> int | None:
    return None if value == same else value
