"""Tiny random MarianMT checkpoints, made by `transformers` itself, with SentencePiece models."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def train_sentencepiece(lines: Iterable[str], **settings: Any) -> bytes:
    """A SentencePiece model of some lines, made in one thread."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        num_threads=1,
        minloglevel=2,
        hard_vocab_limit=False,
        **{"vocab_size": 300, "character_coverage": 0.9995, **settings},
    )
    return written.getvalue()


def make_marian(
    transformers: Any,
    models: tuple[bytes, bytes],
    folder: Path,
    seed: int = 0,
    separate: bool = False,
    generation: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A random MarianMT model in a new folder; `models` are SentencePiece's of both sides.

    Its biases and norms are far from their first values, and many of its sentences end.
    """
    folder.mkdir(parents=True)
    ids = _write_tokenizers(folder, models, separate)
    torch.manual_seed(seed)
    special = {
        "pad_token_id": ids.pad,
        "decoder_start_token_id": ids.pad,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }
    settings = {
        "vocab_size": ids.size,
        "share_encoder_decoder_embeddings": not separate,
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
        "max_position_embeddings": 128,
        "activation_function": "swish",
        "scale_embedding": True,
        "init_std": 0.4,
    }
    config = transformers.MarianConfig(**(settings | special | changes))
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.final_logits_bias.normal_(std=0.5)
        model.final_logits_bias[0, 0] += _gap_to_the_end(model)
    usual = {"num_beams": 3, "max_length": 24, "bad_words_ids": [[ids.pad]]}
    model.generation_config = transformers.GenerationConfig(
        **(usual | special | (generation or {}))
    )
    model.save_pretrained(folder)
    return folder


def _pieces(model: bytes) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(i) for i in range(processor.get_piece_size())]


def _numbered(names: Iterable[str]) -> dict[str, int]:
    """Numbers as OPUS-MT has them: end of sentence first, padding last, the rest in between."""
    tokens = ["</s>", "<unk>", *sorted(set(names) - {"<s>", "</s>", "<unk>"}), "<pad>"]
    return {token: number for number, token in enumerate(tokens)}


def _write_tokenizers(folder: Path, models: tuple[bytes, bytes], separate: bool) -> SimpleNamespace:
    """The tokeniser files of a MarianMT model; the two sides share their numbers or do not."""
    for model, name in zip(models, ("source.spm", "target.spm"), strict=True):
        (folder / name).write_bytes(model)
    pieces = [_pieces(model) for model in models]
    settings = {"source_lang": "en", "target_lang": "fr", "separate_vocabs": separate}
    if separate:
        source, target = map(_numbered, pieces)
        # The model has one number of padding for both sides.
        pad = target["<pad>"] = source["<pad>"] = max(source["<pad>"], target["<pad>"])
        files = {"vocab.json": source, "target_vocab.json": target}
    else:
        # A piece of the source is missing: it is unknown, like in models with a cut vocabulary.
        names = {*pieces[0], *pieces[1], ">>fra<<"} - {"▁the"}
        files = {"vocab.json": _numbered(names)}
        pad = files["vocab.json"]["<pad>"]
    for name, content in {**files, "tokenizer_config.json": settings}.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return SimpleNamespace(pad=pad, size=pad + 1)


def _gap_to_the_end(model: Any) -> float:
    """What EOS needs more to be the best token at three of ten places."""
    rng = torch.Generator().manual_seed(5)
    source, target = torch.randint(2, model.config.pad_token_id, (2, 8, 20), generator=rng)
    logits = model(input_ids=source, decoder_input_ids=target).logits
    return float((logits.amax(-1) - logits[..., 0]).quantile(0.3))
