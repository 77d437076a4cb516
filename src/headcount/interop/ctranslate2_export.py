"""A run as a CTranslate2 model, written and checked through that engine's own specification.

The engine has one number of heads for the encoder and one for the decoder; layers with fewer get
heads of zeros. It never chooses padding or the start token, as our search does not: their output
biases are so low that nothing else changes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.batches import padded
from headcount.errors import UserError
from headcount.interop.checking import largest_difference
from headcount.interop.ctranslate2_positions import add_bias_keys, as_array, has_both
from headcount.interop.plain_tokenizers import token_names
from headcount.model.attention import Attention
from headcount.model.decoding import Search
from headcount.model.embedding import Embedding
from headcount.model.gating import even_layout, repacked, with_layout
from headcount.model.transformer import Transformer
from headcount.run import Run
from headcount.translation import translate_tokens

NEVER = -1e4
"""Added to the logits of tokens that are never written."""


def build_spec(run: Run) -> tuple[Any, Transformer]:
    """The engine's description of a run, and the model that it describes, with zeros added."""
    from ctranslate2.specs import TransformerSpec
    from ctranslate2.specs.common_spec import Activation
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    if not run.config.model.decoder_layers:
        raise UserError(
            f"{run.folder} is an encoder alone, which this export does not write.",
            "Export it to transformers.",
        )
    both = has_both(run)
    packed = repacked(run.model)
    layout = even_layout(packed)
    model = with_layout(packed, layout)
    config = model.config
    activations = {
        "relu": Activation.RELU,
        "gelu": Activation.GELU,
        "gelu_tanh": Activation.GELUTanh,
        "swish": Activation.SWISH,
    }
    common = {
        "pre_norm": config.norm == "pre",
        "activation": activations[config.activation],
        "layernorm_embedding": config.embedding_norm,
        "relative_attention_bias": config.relative_positions != "none" and not both,
        "ffn_glu": config.gated,
        "rms_norm": config.norm_kind == "rms",
    }
    encoder = TransformerEncoderSpec(
        config.encoder_layers,
        len(layout.layers["enc"][0]),
        head_dim=config.head_width_at("enc"),
        **common,
    )
    decoder = TransformerDecoderSpec(
        config.decoder_layers,
        len(layout.layers["dec"][0]),
        head_dim=config.head_width_at("dec"),
        **common,
    )
    spec = TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.norm_epsilon
    _fill_encoder(spec.encoder, model)
    _fill_decoder(spec.decoder, model, banned_tokens(run))
    if both:
        add_bias_keys(spec, model)
    _name_tokens(spec, run)
    return spec, model


def write_ctranslate2(spec: Any, folder: Path, precision: str) -> None:
    """Write the model; the specification cannot be used again."""
    spec.validate()
    spec.optimize(quantization=None if precision == "float32" else precision)
    spec.save(str(folder))


def banned_tokens(run: Run) -> list[int]:
    """Tokens that the run never writes."""
    target = run.target_tokenizer
    return sorted({target.pad, target.start, *run.config.search.forbidden} - {target.eos})


def written_end(run: Run) -> list[str]:
    """What has to be written behind a source sentence: the engine knows one end of sentences.

    That of the targets; mBART's sources end with their language instead.
    """
    source, target = token_names(run)
    end = source[run.source_tokenizer.eos]
    return [] if end == target[run.target_tokenizer.eos] else [end]


def engine_tokens(run: Run, sentences: Sequence[Sequence[int]]) -> list[list[str]]:
    """Source tokens without EOS as the engine reads them."""
    names, end = token_names(run)[0], written_end(run)
    return [[*(names[token] for token in tokens), *end] for tokens in sentences]


def _fill_encoder(spec: Any, model: Transformer) -> None:
    _fill_embedding(spec, spec.embeddings[0], model.source_embedding)
    if model.config.norm == "pre":
        _fill_norm(spec.layer_norm, model.encoder_norm)
    for part, layer in zip(spec.layer, model.encoder_layers(), strict=True):
        _fill_self_attention(part.self_attention, layer.self_attention)
        _fill_feed_forward(part.ffn, layer.feed_forward)


def _fill_decoder(spec: Any, model: Transformer, banned: list[int]) -> None:
    _fill_embedding(spec, spec.embeddings, model.target_embedding)
    if model.config.norm == "pre":
        _fill_norm(spec.layer_norm, model.decoder_norm)
    bias = torch.zeros(len(model.output_weight))
    if model.output_bias is not None:
        bias += model.output_bias.detach()
    bias[banned] += NEVER
    spec.projection.weight, spec.projection.bias = as_array(model.output_weight), as_array(bias)
    for part, layer in zip(spec.layer, model.decoder_layers(), strict=True):
        _fill_self_attention(part.self_attention, layer.self_attention)
        cross: Attention = layer.cross_attention.attention
        _fill_norm(part.attention.layer_norm, layer.cross_attention.norm)
        inner = cross.inner
        _fill_scale(part.attention, cross)
        queries, keys_values, out = part.attention.linear
        _fill_linear(queries, cross.in_weight[:inner], cross.in_bias[:inner])
        _fill_linear(keys_values, cross.in_weight[inner:], cross.in_bias[inner:])
        _fill_linear(out, cross.out_weight, cross.out_bias)
        _fill_feed_forward(part.ffn, layer.feed_forward)


def _fill_self_attention(spec: Any, block: Any) -> None:
    attention: Attention = block.attention
    _fill_norm(spec.layer_norm, block.norm)
    _fill_scale(spec, attention)
    relative = attention.relative
    if relative is not None and hasattr(spec, "relative_attention_bias"):
        spec.relative_attention_bias = as_array(relative.table[:, list(attention.heads)])
        spec.relative_attention_max_distance = np.dtype("int32").type(relative.distance)
    _fill_linear(spec.linear[0], attention.in_weight, attention.in_bias)
    _fill_linear(spec.linear[1], attention.out_weight, attention.out_bias)


def _fill_feed_forward(spec: Any, block: Any) -> None:
    _fill_norm(spec.layer_norm, block.norm)
    _fill_linear(spec.linear_0, block.expand.weight, block.expand.bias)
    _fill_linear(spec.linear_1, block.contract.weight, block.contract.bias)
    if block.multiply is not None:
        _fill_linear(spec.linear_0_noact, block.multiply.weight, block.multiply.bias)


def _fill_embedding(side: Any, spec: Any, embedding: Embedding) -> None:
    spec.weight = as_array(embedding.table.weight)
    side.scale_embeddings = embedding.scale
    if embedding.adds_positions:
        positions = embedding.positions_at(0, embedding.config.max_positions)
        side.position_encodings.encodings = as_array(positions)
    if embedding.norm is not None:
        _fill_norm(side.layernorm_embedding, embedding.norm)


def _fill_scale(spec: Any, attention: Attention) -> None:
    if attention.scale != attention.head_width**-0.5:
        spec.queries_scale = attention.scale


def _fill_linear(spec: Any, weight: Tensor, bias: Tensor) -> None:
    spec.weight, spec.bias = as_array(weight), as_array(bias)


def _fill_norm(spec: Any, norm: Any) -> None:
    spec.gamma = as_array(norm.weight)
    if hasattr(norm, "bias"):
        spec.beta = as_array(norm.bias)


def _name_tokens(spec: Any, run: Run) -> None:
    source, target = token_names(run)
    ids = run.target_tokenizer
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.eos_token = target[ids.eos]
    spec.config.unk_token = target[ids.unk]
    spec.config.bos_token = spec.config.decoder_start_token = target[ids.start]
    spec.config.add_source_eos = not written_end(run)


LIMIT = 1e-4
"""How far the log-probabilities of tokens may be apart in float32."""

ROUNDED_LIMIT = 0.5
"""How far they may be apart, in the mean, where weights are rounded to fewer bits."""

TIES = 100
"""One of this many translations may differ where two tokens are equally probable to five digits."""

_LONGEST = 48


def open_translator(folder: Path, compute_type: str = "default") -> Any:
    """The engine with a model, on the CPU, with as many threads as torch has."""
    import ctranslate2

    ctranslate2.set_log_level(logging.ERROR)  # it warns of types that this machine has to convert
    threads = torch.get_num_threads()
    return ctranslate2.Translator(
        str(folder), device="cpu", compute_type=compute_type, intra_threads=threads
    )


class Comparison:
    """The engine's translations and probabilities beside the run's."""

    def __init__(self, run: Run, sources: Sequence[Sequence[int]]) -> None:
        """`sources` are sentences without EOS. The run translates them, greedily, now."""
        self.run = run
        self.sources = [list(source) for source in sources]
        self.limit = min(_LONGEST, run.config.model.max_positions - 1)
        search = Search(
            beam=1, max_ratio=0, max_extra=self.limit, forbidden=tuple(banned_tokens(run))
        )
        translations = translate_tokens(run, self.sources, search)
        self.greedy = [best[0].tokens for best in translations]
        self.shift = 0.0

    def log_probabilities(self, folder: Path) -> tuple[Tensor, Tensor]:
        """Of every token of the run's translations, EOS included: the run's and the engine's.

        The engine never writes the tokens that are banned, and the others share their probability;
        the run's values here are adjusted in the same way. `shift` is the largest difference that
        this makes to the run as it is.
        """
        engine = open_translator(folder)
        names = token_names(self.run)[1]
        scored = engine.score_batch(
            engine_tokens(self.run, self.sources),
            [[names[token] for token in target] for target in self.greedy],
            max_input_length=0,
        )
        theirs = [value for result in scored for value in result.log_probs]
        plain, gained = self._own_log_probabilities()
        self.shift = float(gained.max())
        return plain + gained, torch.tensor(theirs)

    def same_translations(self, folder: Path) -> int:
        """How many greedy translations are the same, token for token."""
        engine = open_translator(folder)
        names = token_names(self.run)[1]
        first = [names[token] for token in self.run.config.model.first_tokens]
        results = engine.translate_batch(
            engine_tokens(self.run, self.sources),
            target_prefix=[first] * len(self.sources) if first else None,
            beam_size=1,
            min_decoding_length=0,  # the engine's default is 1: no empty translations
            max_decoding_length=self.limit,
            max_input_length=0,
        )
        expected = [[names[token] for token in target] for target in self.greedy]
        return sum(
            result.hypotheses[0] == target for result, target in zip(results, expected, strict=True)
        )

    @torch.inference_mode()
    def _own_log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The run's log-probability of every token, and its gain without banned ones;
        `[tokens]`."""
        model, ids = self.run.model, self.run.target_tokenizer
        rows = [[*source, self.run.source_tokenizer.eos] for source in self.sources]
        inputs = padded([[ids.start, *target] for target in self.greedy], ids.pad)
        logits = model(padded(rows, model.pad), inputs)
        all_tokens = F.log_softmax(logits, -1)
        banned = torch.tensor(banned_tokens(self.run))
        # Minus the log of what all others have together, [sentences, target].
        gains = -all_tokens.index_fill(-1, banned, -torch.inf).logsumexp(-1)
        chosen, gained = [], []
        for row, gain, target in zip(all_tokens, gains, self.greedy, strict=True):
            labels = torch.tensor([*target, ids.eos])
            chosen.append(row[: len(labels)].gather(1, labels[:, None])[:, 0])
            gained.append(gain[: len(labels)])
        return torch.cat(chosen), torch.cat(gained)


def check_ctranslate2(comparison: Comparison, folder: Path, precision: str) -> float:
    """Load the written model and compare: exact in float32, close where weights are rounded.

    Gives the largest difference of log-probabilities, or the mean one for rounded weights.
    """
    ours, theirs = comparison.log_probabilities(folder)
    if precision == "float32":
        limit = LIMIT
        difference = largest_difference(ours, theirs, limit, "CTranslate2 model")
        count = len(comparison.sources)
        other = count - comparison.same_translations(folder)
        if other > count // TIES:
            raise UserError(
                f"The CTranslate2 model translates {other} of {count} sentences otherwise."
                " Nothing was written.",
                "Please report this with the run's config.yaml.",
            )
        return difference
    mean = (ours - theirs).abs().mean().reshape(1)
    return largest_difference(mean, torch.zeros(1), ROUNDED_LIMIT, f"{precision} model")
