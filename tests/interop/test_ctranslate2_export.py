"""The engine itself is the reference: its log-probabilities and its translations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Core

from headcount.heads import Head
from headcount.interop.checking import make_sample
from headcount.interop.ctranslate2_export import (
    Comparison,
    build_spec,
    check_ctranslate2,
    open_translator,
    write_ctranslate2,
)
from headcount.interop.export import export
from headcount.interop.plain_tokenizers import token_names
from headcount.model.decoding import Search
from headcount.model.gating import remove_heads
from headcount.run import Run
from headcount.scoring import score_lines
from headcount.translation import translate_lines

pytest.importorskip("ctranslate2", reason="needs headcount[ctranslate2]")

NO_ENC_0 = ["enc.0.0", "enc.0.1", "enc.0.2"]
MODELS: dict[str, dict[str, Any]] = {
    "pre-norm": {},
    "post-norm": {"norm": "post", "activation": "swish", "output_bias": True, "tie": "all"},
    "ragged": {
        "output_bias": True, "gone": [*NO_ENC_0, "enc.1.1", "dec.0.1", "cross.1.2", "cross.1.0"],
    },
    "ragged, post-norm": {
        "norm": "post", "output_bias": True, "gone": ["enc.1.0", "dec.0.0", "dec.0.1", "dec.0.2"],
    },
    "odd sizes": {
        "head_width": 5, "decoder_head_width": 7,
        "decoder_heads": 2, "decoder_ff_width": 9, "activation": "gelu",
        "embedding_scale": False, "tie": "none", "output_bias": True,
        "position_base": 50.0,
    },
    "encoder without heads": {"gone": [*NO_ENC_0, "enc.1.0", "enc.1.1", "enc.1.2"]},
    "biases per layer alone": {
        "relative_positions": "layer", "positions": "none", "position_distance": 17,
        "gone": ["enc.0.1", "dec.1.0"],
    },
    "biases per layer and sinusoids": {
        "relative_positions": "layer", "position_buckets": 8, "position_distance": 9,
        "decoder_head_width": 7, "gone": ["enc.0.1", "dec.1.0"],
    },
    "one table of biases and learned positions": {
        "relative_positions": "stack", "positions": "learned", "gated": True, "norm_kind": "rms",
    },
    "other widths in every layer": {
        "ff_block": 3, "gated": True, "activation": "gelu",
        "gone": ["enc_ff.0.0", "enc_ff.0.3", "enc_ff.1.5", *(f"dec_ff.1.{i}" for i in range(6))],
    },
    "blocks gone": {
        "relative_positions": "layer", "positions": "none", "encoder_layers": 4,
        "gone": ["enc_layers.0.1", "enc_layers.1.0", "enc_layers.2.0", "enc_layers.2.1",
                 "dec_layers.0.2", "dec_layers.1.0", "dec_layers.1.1", "enc.3.1"],
    },
    "blocks gone, post-norm": {
        "norm": "post", "gone": ["enc_layers.0.1", "enc_layers.1.0", "dec_layers.1.1"],
    },
    "a layer gone, sinusoids and biases": {
        "relative_positions": "layer", "position_distance": 9, "position_buckets": 8,
        "gone": ["enc_layers.0.0", "enc_layers.0.1", "dec_layers.1.1"],
    },
}  # fmt: skip
PADDED = {
    "ragged": 2 + 3,
    "ragged, post-norm": 1 + 3,
    "encoder without heads": 2,
    "biases per layer alone": 1 + 1,
    "biases per layer and sinusoids": 1 + 1,
    "blocks gone": 1,
    "blocks gone, post-norm": 3 + 3,
    "a layer gone, sinusoids and biases": 3,
}
LAYERS = {"blocks gone": (2, 1), "a layer gone, sinusoids and biases": (1, 2)}


def ends(run: Run) -> Run:
    """The run, with an end of sentence that is the best token at one of five places."""
    sample = make_sample(run, seed=2)
    assert run.model.output_bias is not None
    with torch.no_grad():
        logits = run.model(sample.source, sample.target)
        gaps = logits.amax(-1) - logits[..., run.target_tokenizer.eos]
        run.model.output_bias[run.target_tokenizer.eos] += gaps.quantile(0.2)
    return run


@pytest.fixture(scope="module", params=MODELS, ids=str)
def case(request: pytest.FixtureRequest, make_run: Callable[..., Run]) -> tuple[str, Run]:
    name = request.param
    run = make_run(list(MODELS).index(name), **MODELS[name])
    return name, ends(run) if run.config.model.output_bias else run


def as_it_is(run: Run, comparison: Comparison) -> torch.Tensor:
    """Log-probabilities of the run's own softmax, sentence by sentence."""
    ids, chosen = run.target_tokenizer, []
    for source, target in zip(comparison.sources, comparison.greedy, strict=True):
        with torch.inference_mode():
            logits = run.model(
                torch.tensor([[*source, run.source_tokenizer.eos]]),
                torch.tensor([[ids.start, *target]]),
            )
        steps = enumerate([*target, ids.eos])
        chosen += [float(logits[0, i].log_softmax(-1)[token]) for i, token in steps]
    return torch.tensor(chosen)


def test_float32_is_equal(case: tuple[str, Run], english: list[str], tmp_path: Path) -> None:
    name, run = case
    exported = export(run, "ctranslate2", tmp_path / "out", lines=english[:3])
    assert exported.difference < 1e-4
    assert exported.padded_heads == PADDED.get(name, 0)
    layers = LAYERS.get(name, (run.config.model.encoder_layers, run.config.model.decoder_layers))
    config = build_spec(run)[1].config
    assert (config.encoder_layers, config.decoder_layers) == layers
    comparison = Comparison(run, make_sample(run, english[10:20], seed=3).sentences)
    ours, theirs = comparison.log_probabilities(tmp_path / "out")
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    plain = as_it_is(run, comparison)
    assert float((theirs - plain).max()) == pytest.approx(comparison.shift, abs=1e-4)
    assert exported.shift > 0
    assert "never writes <pad>, <s>" in exported.notes[-1]
    assert comparison.same_translations(tmp_path / "out") == len(comparison.sources)
    if run.config.model.output_bias:
        assert any(len(tokens) < comparison.limit for tokens in comparison.greedy)


def test_int8_is_close_and_smaller(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = ends(make_run(1, width=24, ff_width=64, output_bias=True))
    full = export(run, "ctranslate2", tmp_path / "float32")
    small = export(run, "ctranslate2", tmp_path / "int8", precision="int8")
    assert 1e-6 < small.difference < 0.2
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("int8", "float32")]
    assert sizes[0] < 0.5 * sizes[1]
    assert full.difference < 1e-4


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_beam_search_scores_alike(
    make_run: Callable[..., Run], english: list[str], tmp_path: Path, precision: str
) -> None:
    """On lines of text, with the engine's default: stop when `beam` hypotheses are finished."""
    run = ends(make_run(4, tie="none", width=24, output_bias=True))
    folder = tmp_path / "out"
    export(run, "ctranslate2", folder, precision=precision)
    lines = english[:30]
    search = Search(
        length_penalty=1.0, normalisation="length", early_stop=True, max_ratio=0, max_extra=30
    )
    ours = translate_lines(run, lines, search)
    source = Core.from_file(str(folder / "source_tokenizer.json"))
    target = Core.from_file(str(folder / "target_tokenizer.json"))
    found = open_translator(folder).translate_batch(
        [source.encode(line).tokens for line in lines],
        beam_size=4,
        length_penalty=1.0,
        min_decoding_length=0,
        max_decoding_length=30,
    )
    theirs = [target.decoder.decode(result.hypotheses[0]).strip() for result in found]
    assert len(set(ours)) > 3
    if precision == "float32":
        same = sum(a == b for a, b in zip(theirs, ours, strict=True))
        assert same >= len(lines) - 2  # a random model has ties to the last digit
    else:
        assert score_lines(theirs, ours).bleu.value > 30


def test_imported_and_pruned(marian_run: Run, english: list[str], tmp_path: Path) -> None:
    gone = [Head("enc", 0, i) for i in range(4)] + [Head("cross", 1, 2)]
    smaller = remove_heads(marian_run.model, gone)
    run = Run(
        Path("pruned"), marian_run.config, smaller, marian_run.source_tokenizer,
        marian_run.target_tokenizer,
    )  # fmt: skip
    exported = export(run, "ctranslate2", tmp_path / "out", lines=english[:10])
    assert (exported.padded_heads, exported.difference < 1e-4) == (5, True)


def test_a_wrong_weight_is_noticed(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(2)
    comparison = Comparison(run, make_sample(run).sentences)
    with torch.no_grad():
        run.model.attentions()["cross", 0].in_weight[3] += 1.0
    for precision in ("float32", "int8"):
        spec, _ = build_spec(run)
        (tmp_path / precision).mkdir()
        write_ctranslate2(spec, tmp_path / precision, precision)
    with torch.no_grad():
        run.model.attentions()["cross", 0].in_weight[3] -= 1.0
    with pytest.raises(Exception, match="other numbers"):
        check_ctranslate2(comparison, tmp_path / "float32", "float32")


def test_padding_and_start_are_never_written(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(3, output_bias=True)
    ids = run.target_tokenizer
    with torch.no_grad():
        run.model.output_bias[[ids.pad, ids.start]] += 50.0  # type: ignore[index]
    export(run, "ctranslate2", tmp_path / "out")
    source, target = token_names(run)
    found = open_translator(tmp_path / "out").translate_batch(
        [source[10:15]], beam_size=1, max_decoding_length=20
    )
    assert not {target[ids.pad], target[ids.start]} & set(found[0].hypotheses[0])
