"""Tiny random MarianMT checkpoints, made by `transformers` itself, with SentencePiece models.

Fixtures skip where an extra is not installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headcount.config import Config
from headcount.data.builtin import generate
from headcount.data.tokenizer import Tokenizer
from headcount.heads import Head
from headcount.model.gating import remove_heads
from headcount.run import Run

PAIRS = 1200


def need(package: str, extra: str) -> Any:
    """A package, or a skipped test."""
    return pytest.importorskip(package, reason=f"needs {package}: headcount[{extra}]")


@pytest.fixture(scope="session")
def english() -> list[str]:
    """English sentences of the built-in corpus."""
    return [sentence.text for sentence, _ in generate(PAIRS)]


@pytest.fixture(scope="session")
def french() -> list[str]:
    """Their translations."""
    return [translation for _, translation in generate(PAIRS)]


@pytest.fixture(scope="session")
def transformers() -> Any:
    """The library, without its bars and advice."""
    need("sentencepiece", "marian")
    library = need("transformers", "marian")
    library.utils.logging.disable_progress_bar()
    library.utils.logging.set_verbosity_error()
    return library


@pytest.fixture(scope="session")
def train_sentencepiece() -> Callable[..., bytes]:
    """`train_sentencepiece(lines, **settings)`: a SentencePiece model, in one thread."""
    sentencepiece = need("sentencepiece", "marian")

    def train(lines: Iterable[str], **settings: Any) -> bytes:
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

    return train


@pytest.fixture(scope="session")
def sentencepiece_models(
    train_sentencepiece: Callable[..., bytes], english: list[str], french: list[str]
) -> tuple[bytes, bytes]:
    """Of both sides of the built-in corpus."""
    return train_sentencepiece(english[:600]), train_sentencepiece(french[:600])


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


@pytest.fixture(scope="session")
def make_checkpoint(
    transformers: Any, sentencepiece_models: tuple[bytes, bytes]
) -> Callable[..., Path]:
    """`make_checkpoint(folder, seed, separate, generation, **settings)`: a random MarianMT model.

    Its biases and norms are far from their first values, and many of its sentences end.
    """

    def make(
        folder: Path,
        seed: int = 0,
        separate: bool = False,
        generation: dict[str, Any] | None = None,
        **changes: Any,
    ) -> Path:
        folder.mkdir(parents=True)
        ids = _write_tokenizers(folder, sentencepiece_models, separate)
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

    return make


@pytest.fixture(scope="session")
def marian_folder(
    make_checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """One checkpoint for all tests that only read it."""
    return make_checkpoint(tmp_path_factory.mktemp("marian") / "opus-mt-en-fr")


@pytest.fixture(scope="session")
def marian_run(marian_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Its run; not to be changed."""
    from headcount.interop.importing import import_run

    return import_run(marian_folder, tmp_path_factory.mktemp("runs") / "imported").run


@pytest.fixture(scope="session")
def own_tokenizer(english: list[str], french: list[str]) -> Tokenizer:
    """BPE as `headcount train` makes it."""
    return Tokenizer.train([*english[:300], *french[:300]], 300)


@pytest.fixture(scope="session")
def make_run(make_model: Callable[..., Any], own_tokenizer: Tokenizer) -> Callable[..., Run]:
    """`make_run(seed, gone, **model)`: a run with random weights, without the heads `gone`.

    The blocks' weights are large, so that what it writes depends on what it reads; but not so
    large where positions are biases only that rounding decides where its heads look.
    """

    def make(seed: int = 0, gone: Iterable[str] = (), **changes: Any) -> Run:
        size = own_tokenizer.size
        settings = {"vocabulary": (size, size), "double": False, "max_positions": 128}
        model = make_model(seed, **(settings | changes))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2 and name.startswith(("encoder.", "decoder.")):
                    parameter.mul_(1.0 if model.config.positions == "none" else 2.5)
        if gone:
            model = remove_heads(model, map(Head.parse, gone))
        config = Config(model=model.config)
        return Run(Path(f"run-{seed}"), config, model, own_tokenizer, own_tokenizer)

    return make
