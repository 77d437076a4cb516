"""Twenty random configurations of each family: logits, tokens, greedy and beam translations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_checkpoints import Maker
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from headcount.data.words import MARK
from headcount.errors import UserError
from headcount.heads import Head
from headcount.interop.checking import make_sample, own_logits
from headcount.interop.ctranslate2_export import engine_tokens
from headcount.interop.export import export
from headcount.interop.families import FAMILIES
from headcount.interop.importing import import_run
from headcount.interop.plain_tokenizers import token_names
from headcount.model.decoding import Search
from headcount.model.gating import remove_heads
from headcount.run import Run, load_run, regroup
from headcount.translation import translate_tokens

CONFIGURATIONS = 20
ENCODERS = ("bert", "distilbert", "roberta", "xlm-roberta")
TRANSLATORS = ("m2m100", "bart", "mbart", "t5", "mt5")


@pytest.fixture(scope="module")
def maker(
    transformers: Any, english: list[str], french: list[str], sentencepiece_models: tuple
) -> Maker:
    return Maker(transformers, [*english[:400], *french[:400]], sentencepiece_models[0])


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
@pytest.mark.parametrize("family", TRANSLATORS)
@torch.no_grad()
def test_a_random_configuration(
    maker: Maker, english: list[str], tmp_path: Path, family: str, seed: int
) -> None:
    made = maker.make(family, tmp_path / "model", seed)
    imported = import_run(tmp_path / "model", tmp_path / "run", **made.options)
    run = imported.run
    assert imported.difference < 1e-4
    assert run.config.model.family == family
    sample = make_sample(run, seed=100 + seed)
    expected = FAMILIES[family].adapter.logits(made.model, sample, run.model.pad)
    assert expected.std() > 0.3
    logits = own_logits(run, sample)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)

    lines = english[seed : seed + 4]
    prefix = made.options.get("prefix", "")
    framed = [prefix + line for line in lines]
    batch = made.tokenizer(framed, return_tensors="pt", padding=True)
    source, target = run.source_tokenizer, run.target_tokenizer
    sources = source.encode_batch(lines)
    for tokens, ids, mask in zip(sources, batch.input_ids, batch.attention_mask, strict=True):
        assert [*tokens, source.eos] == ids[mask > 0].tolist()
    for beam in (1, None):
        changes = {} if beam is None else {"num_beams": 1, "early_stopping": False}
        # transformers' cache has no room for a T5 whose decoder is deeper than its encoder.
        found = made.model.generate(**batch, **changes, use_cache="t5" not in family)
        expected_ids = [until(row[1:], target.eos) for row in found.tolist()]
        search = Search.of(run.config.search, beam=beam)
        written = [best[0].tokens for best in translate_tokens(run, sources, search)]
        assert written == expected_ids
        if made.tokenizer.is_fast:
            texts = made.tokenizer.batch_decode(found, skip_special_tokens=True)
            assert target.decode_batch(written) == [text.strip() for text in texts]


@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_madlad(maker: Maker, english: list[str], tmp_path: Path, seed: int) -> None:
    """Its embeddings may be stored as the decoder's; text in other engines begins with <2fr>."""
    made = maker.make("madlad", tmp_path / "model", seed)
    path = tmp_path / "model" / "model.safetensors"
    weights = load_file(path)
    assert not any(name.endswith("embed_tokens.weight") for name in weights)
    weights["decoder.embed_tokens.weight"] = weights.pop("shared.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"knows 2 languages.*--target-language, for example de"):
        import_run(tmp_path / "model", tmp_path / "run")
    with pytest.raises(UserError, match="does not know the language 'xx'"):
        import_run(tmp_path / "model", tmp_path / "run", target_language="xx")
    imported = import_run(tmp_path / "model", tmp_path / "run", **made.options)
    assert imported.difference < 1e-4
    run = imported.run
    lines = english[:6]
    batch = made.tokenizer([f"<2fr> {line}" for line in lines], return_tensors="pt", padding=True)
    sources = run.source_tokenizer.encode_batch(lines)
    for tokens, ids, mask in zip(sources, batch.input_ids, batch.attention_mask, strict=True):
        assert [*tokens, run.source_tokenizer.eos] == ids[mask > 0].tolist()
    for beam in (1, None):
        changes = {} if beam is None else {"num_beams": 1, "early_stopping": False}
        expected = made.model.generate(**batch, **changes, use_cache=False)
        search = Search.of(run.config.search, beam=beam)
        written = [best[0].tokens for best in translate_tokens(run, sources, search)]
        assert written == [until(row[1:], 2) for row in expected.tolist()]
    run.model = remove_heads(run.model, [Head("enc", 0, 0), Head("cross", 1, 1)])
    for name in ("ctranslate2", "onnx", "transformers"):
        assert export(run, name, tmp_path / name, lines=lines).difference < 1e-4


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_a_random_encoder(
    maker: Maker, english: list[str], tmp_path: Path, family: str, seed: int
) -> None:
    made = maker.make(family, tmp_path / "model", seed)
    imported = import_run(tmp_path / "model", tmp_path / "run")
    run = imported.run
    assert imported.difference < 1e-4
    masked = type(made.model).__name__.endswith("ForMaskedLM")
    assert run.config.model.output_network == masked
    if type(made.model).__name__.endswith("ForSequenceClassification"):
        assert run.config.model.classes == tuple(made.model.config.id2label.values())
    sample = make_sample(run, seed=100 + seed)
    expected = FAMILIES[family].adapter.logits(made.model, sample, run.model.pad)
    assert expected.std(0).max() > (0.01 if run.config.model.classes else 0.1)
    torch.testing.assert_close(own_logits(run, sample), expected, atol=1e-4, rtol=0)
    tokenizer = run.source_tokenizer
    for line in english[seed : seed + 4]:
        theirs = made.tokenizer(line, return_offsets_mapping=True)
        assert [*tokenizer.encode(line), tokenizer.eos] == list(theirs.input_ids)
        pieces = tokenizer.pieces(line)[1:]  # [CLS] and [SEP] cover nothing
        for piece, (start, end) in zip(pieces, theirs.offset_mapping[1:-1], strict=True):
            start += line[start:end] != line[start:end].lstrip()
            if piece.text != MARK:  # a lone mark covers nothing here, there the letter behind it
                assert (piece.start, piece.end) == (start, end)
    if seed < 4:
        gone = [Head("enc", 0, 0)]
        pruned = Run(Path("x"), run.config, remove_heads(run.model, gone), tokenizer, tokenizer)
        exported = export(pruned, "transformers", tmp_path / "out", lines=english[:3])
        assert exported.padded_heads == 1
        again = import_run(tmp_path / "out", tmp_path / "again").run
        torch.testing.assert_close(
            own_logits(again, sample), own_logits(pruned, sample), atol=1e-4, rtol=0
        )


@pytest.mark.parametrize("family", TRANSLATORS)
@pytest.mark.parametrize("seed", [1, 2])
def test_pruned_in_other_engines(
    maker: Maker, english: list[str], tmp_path: Path, family: str, seed: int
) -> None:
    """CTranslate2 and ONNX carry all of them; mBART's sources end with their language."""
    pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")
    pytest.importorskip("onnxruntime", reason="needs headcount[onnx]")
    made = maker.make(family, tmp_path / "model", seed)
    run = import_run(tmp_path / "model", tmp_path / "run", **made.options).run
    run = regroup(run, 3)
    gone = [Head("enc", 0, 0), Head("dec", 0, 0)]
    if seed == 2:  # units and whole blocks too
        gone += [Head("enc_ff", 0, 1), Head("dec_ff", 0, 0), Head("enc_layers", 0, 0)]
        gone += [Head("dec_layers", run.config.model.decoder_layers - 1, 2)]
    run.model = remove_heads(run.model, gone)
    exported = export(run, "ctranslate2", tmp_path / "engine", lines=english[:5])
    assert exported.difference < 1e-4
    source, names = run.source_tokenizer, token_names(run)[0]
    plain = Tokenizer.from_file(str(tmp_path / "engine" / "source_tokenizer.json"))
    for line in english[:5]:
        written = [t if t in names else names[source.unk] for t in plain.encode(line).tokens]
        assert [written] == engine_tokens(run, [source.encode(line)])
    assert export(run, "onnx", tmp_path / "graphs", lines=english[:5]).difference < 1e-4


@pytest.mark.parametrize("family", TRANSLATORS)
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_pruned_and_written_back(
    maker: Maker, english: list[str], tmp_path: Path, family: str, seed: int
) -> None:
    """Pruned heads are zeros there; the run itself reloads pruned."""
    made = maker.make(family, tmp_path / "model", seed)
    run = import_run(tmp_path / "model", tmp_path / "run", **made.options).run
    heads = [Head("enc", 0, i) for i in range(run.config.model.heads)]
    gone = [*heads, Head("dec", 0, 0), Head("cross", 0, 0)]
    if seed == 2:
        run = regroup(run, 3)
        gone += [Head("dec_ff", 0, 1), Head("enc_ff", 0, 0), Head("dec_layers", 0, 2)]
    run.model = remove_heads(run.model, gone)
    run.save(tmp_path / "pruned")
    pruned = load_run(tmp_path / "pruned")
    assert pruned.model.heads == run.model.heads
    sample = make_sample(pruned, seed=200 + seed)
    torch.testing.assert_close(own_logits(pruned, sample), own_logits(run, sample))
    exported = export(pruned, "transformers", tmp_path / "out", lines=english[:3])
    assert exported.padded_heads == len(heads) + 2
    loaded = type(made.model).from_pretrained(tmp_path / "out").eval()
    expected = FAMILIES[family].adapter.logits(loaded, sample, pruned.model.pad)
    torch.testing.assert_close(own_logits(pruned, sample), expected, atol=1e-4, rtol=0)
    assert not torch.allclose(
        FAMILIES[family].adapter.logits(made.model, sample, pruned.model.pad), expected, atol=1e-2
    )


def until(tokens: list[int], end: int) -> list[int]:
    """The tokens before the end of the sentence."""
    return tokens[: tokens.index(end)] if end in tokens else tokens
