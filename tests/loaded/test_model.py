"""A model in one's hands: every answer agrees with what the stages give for the same question."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headcount
from headcount.errors import UserError
from headcount.heads import Head
from headcount.loaded.model import Model
from headcount.model.decoding import GREEDY
from headcount.model.gating import masked, remove_heads
from headcount.model.recording import record
from headcount.run import Run, load_run

TEXT = "A big dog and a small cat see it ."


@pytest.fixture
def model(run_folder) -> Model:
    return headcount.load(run_folder, device="cpu")


def test_a_string_gives_a_string_and_a_list_a_list(model, run_folder):
    one = model.translate(TEXT)
    assert isinstance(one, str)
    assert model.translate([TEXT, "The cat sees the dog ."])[0] == one
    assert headcount.translate(run_folder, TEXT) == one
    assert headcount.translate(model, [TEXT]) == [one]
    assert model.translate([]) == []


def test_units_and_blocks_are_switched_off_by_name(model):
    with model.heads_off("enc_ff.0, dec_layers.1.0"):
        off = model.translate(TEXT)
    gone = [Head("enc_ff", 0, 0), Head("dec_layers", 1, 0)]
    removed = Run(
        model.folder, model.config, remove_heads(model.model, gone),
        model.source_tokenizer, model.target_tokenizer,
    )  # fmt: skip
    assert headcount.translate(removed, TEXT) == off
    with model.heads_off("*.1.*"):  # attention alone
        gates = {
            place for place, module in model.model.gateables().items() if module.gate is not None
        }
    assert gates == {("enc", 1), ("dec", 1), ("cross", 1)}


def test_heads_off_equals_heads_removed(model):
    gone = [Head("enc", 0, 1), Head("cross", 1, 2)]
    removed = Run(
        model.folder, model.config, remove_heads(model.model, gone),
        model.source_tokenizer, model.target_tokenizer,
    )  # fmt: skip
    expected = headcount.translate(removed, TEXT)
    assert model.translate(TEXT, off=["enc.0.1", "cross.1.2"]) == expected
    assert model.translate(TEXT, off="enc.0.1,cross.1.2") == expected
    with model.heads_off("enc.0.1", Head("cross", 1, 2)):
        assert model.translate(TEXT) == expected
        assert headcount.translate(model, TEXT) == expected
        with model.heads_off("enc.0.2"):
            inner = model.translate(TEXT)
        assert model.translate(TEXT) == expected
    assert model.translate(TEXT, off=["enc.0.1", "enc.0.2", "cross.1.2"]) == inner
    assert all(attention.gate is None for attention in model.model.attentions().values())


def test_patterns_mean_layers_and_sites(model):
    """Without all heads of the decoder's attention to the source, the source does not matter."""
    _, off = model.log_probabilities(TEXT, target="le chat", off="cross")
    _, other = model.log_probabilities("I see you", target="le chat", off="cross.*.*")
    np.testing.assert_allclose(off, other, rtol=1e-5)
    assert not np.allclose(off, model.log_probabilities(TEXT, target="le chat")[1])
    layer = [Head("enc", 1, index) for index in range(3)]
    with masked(model.model, layer):
        expected = model.translate(TEXT)
    assert model.translate(TEXT, off="enc.1") == expected


def test_attention_is_what_a_pass_records(model):
    attention = model.attention(TEXT)
    assert attention.translation == model.translate(TEXT)
    assert attention.source_tokens[-1] == "</s>"
    assert attention.target_tokens[0] == "<s>"
    assert attention.heads == model.heads
    source = model.source_tokenizer.encode(TEXT)
    target = model.target_tokenizer.encode(attention.translation)
    assert len(attention.source_tokens) == len(source) + 1
    given = model.attention(TEXT, target=attention.translation)
    with torch.no_grad(), record(model.model, {"weights"}) as recording:
        memory, mask = model.model.encode(torch.tensor([[*source, 3]]))
        model.model.decode(torch.tensor([[2, *target]]), memory, mask)
    for head in model.heads:
        expected = recording[head.site, head.layer, "weights"][0, head.index].numpy()
        np.testing.assert_allclose(given[str(head)], expected, atol=1e-6)
        queries, keys = given.tokens(head)
        assert given[head].shape == (len(queries), len(keys))
        np.testing.assert_allclose(given[head].sum(1), 1.0, rtol=1e-5)


def test_relevance_of_heads_is_the_ranking_of_that_sentence(model):
    relevance = model.relevance(TEXT, beam=1)
    ranking = headcount.rank(model, [TEXT], by=["lrp"])
    for head, value in ranking["lrp"].items():
        assert relevance.heads["lrp"][str(head)] == pytest.approx(value, rel=1e-4, abs=1e-6)
    mean = np.nanmean(np.stack([relevance.by_step[head] for head in model.heads]), axis=1)
    assert mean == pytest.approx([relevance.heads["lrp"][head] for head in model.heads], rel=1e-5)
    step = relevance.at(0)["lrp"]
    assert sum(step[f"enc.0.{i}"] for i in range(3)) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", ["ratio", "zplus", "alphabeta"])
def test_relevance_of_tokens_adds_up_to_the_audit(model, rule):
    relevance = model.relevance(TEXT, rule=rule)
    steps, prefix = len(relevance.steps), len(relevance.target_tokens)
    assert relevance.source.shape == (steps, len(relevance.source_tokens))
    assert relevance.target.shape == (steps, prefix)
    arrived = {row.station: row.arrived for row in relevance.audit}
    assert relevance.source.sum() / steps == pytest.approx(arrived["enc_in"], rel=1e-3, abs=1e-5)
    assert relevance.target.sum() / steps == pytest.approx(arrived["dec_in"], rel=1e-3, abs=1e-5)
    assert not np.triu(relevance.target, 1).any()  # nothing comes from what is not yet read
    share = relevance.source_contribution
    assert ((share >= 0) & (share <= 1)).all()


def test_switched_off_heads_have_no_relevance(model):
    relevance = model.relevance(TEXT, off=["enc.0.0"])
    assert relevance.heads["lrp"]["enc.0.0"] == pytest.approx(0.0, abs=1e-6)
    assert relevance.translation == model.translate(TEXT, off=["enc.0.0"])


def test_log_probabilities_are_the_score_of_the_search(model):
    """A beam search's score is the sum of the log-probabilities over the length penalty."""
    from headcount.translation import translate_tokens

    best = translate_tokens(model, [model.source_tokenizer.encode(TEXT)], GREEDY)[0][0]
    tokens, logs = model.log_probabilities(TEXT, beam=1)
    if len(best.tokens) == len(tokens) - 1:  # it has an end
        assert GREEDY.score(logs.sum(), len(tokens)) == pytest.approx(best.score, rel=1e-4)
    assert (logs <= 0).all()


def test_record_and_edit(model):
    with model.record("enc.*.weights", "dec.1.output") as tape:
        translation = model.translate(TEXT)
    attention = model.attention(TEXT, target=translation)
    np.testing.assert_allclose(tape["enc.1.weights"][0, 2], attention["enc.1.2"], atol=1e-6)
    assert tape["dec.1.output"].shape[1] == len(model.target_tokenizer.encode(translation)) + 1
    assert model.model.tape.recording is None

    def without_head_0(outputs):
        return torch.cat([0 * outputs[:, :1], outputs[:, 1:]], dim=1)

    with model.edit("cross.0.outputs", without_head_0):
        edited = model.translate(TEXT)
    assert edited == model.translate(TEXT, off="cross.0.0")


def test_bad_input_is_one_clear_line(model, tmp_path):
    for wrong in ("enc.9.9", "foo", "enc.0.0.0", "enc.0.11"):
        with pytest.raises(UserError, match="no head"):
            model.translate(TEXT, off=[wrong])
    with pytest.raises(UserError, match="empty"):
        model.translate("  ")
    with pytest.raises(UserError, match="the model takes at most 63"):
        model.attention("cat " * 100)
    with pytest.raises(UserError, match="the model takes at most 63"):
        model.relevance(TEXT, target="cat " * 100)
    with pytest.raises(UserError, match="no activation"), model.record("enc.0.thoughts"):
        pass
    with pytest.raises(UserError, match="no rule 'ration'"):
        model.relevance(TEXT, rule="ration")
    with pytest.raises(UserError, match="is not a run folder"):
        headcount.load(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        headcount.load("no-such-run")


def test_load_takes_runs_and_models(model, run_folder):
    run = load_run(run_folder)
    assert headcount.load(run).translate(TEXT) == model.translate(TEXT)
    assert headcount.load(model) is model
    assert "heads: 6 enc + 6 dec + 6 cross" in repr(model)


def test_pictures(model, tmp_path):
    attention, relevance = model.attention(TEXT), model.relevance(TEXT)
    for name, figure in {
        "map": attention.plot("cross.0.1"),
        "tokens": relevance.plot(),
        "heads": relevance.heads.plot(),
    }.items():
        figure.savefig(tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 2000


def test_show_is_a_page_that_needs_nothing_else(model, tmp_path):
    viewer = model.attention("The cat <script>alert(1)</script> sees").show()
    path = viewer.save(tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert "default-src &#39;none&#39;" in text
    assert "<script>alert" not in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert viewer._repr_html_().count("<iframe") == 1
