"""Propagation through whole models: against the neuron-by-neuron reference, and its properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headcount.heads import ALL_SITES, Head
from headcount.model.gating import gated, masked, remove_heads
from headcount.ranking.evidence import attentions_of
from headcount.ranking.lrp.audit import audit_rows
from headcount.ranking.lrp.fast import FastRatio, Telescoped
from headcount.ranking.lrp.maps import Maps
from headcount.ranking.lrp.propagate import Propagation, plan_starts
from headcount.ranking.lrp.rules import CHOICES, RULES, LrpOptions, Ratio
from model_shapes import SHAPES
from ranking.neurons import ReferenceModel

SOURCES, STEPS = [2, 3], [3, 2]


def exact(options: LrpOptions) -> LrpOptions:
    """Without epsilon where no denominator is left to add it to."""
    telescopes = options.rule == "ratio" and Telescoped.serves(options)
    return replace(options, epsilon=0.0) if telescopes else options


def propagate(model, options, batch, steps=STEPS, memory=10**9, tokens=False):
    propagation = Propagation(model, options, memory, places=attentions_of(model, ALL_SITES))
    return propagation.propagate(propagation.record(*batch), steps, tokens=tokens)


def compare_with_reference(model, options, batch) -> None:
    """All heads and tokens, all steps, all sentences of a padded batch; and what biases took.

    To 1e-6 of the largest relevance on the way, where a rule lets it grow.
    """
    source, prefix = batch
    found = propagate(model, options, batch, memory=300, tokens=True)  # several chunks of starts
    taken = 0.0
    for row, (length, count) in enumerate(zip(SOURCES, STEPS, strict=True)):
        reference = ReferenceModel(model, options)
        logits = reference.run(source[row, :length].tolist(), prefix[row, :count].tolist())
        expected_logits = model(source[row : row + 1, :length], prefix[row : row + 1, :count])
        assert [n.value for n in logits] == pytest.approx(expected_logits[0].amax(-1).tolist())
        for step, start in enumerate(logits):
            reference.network.propagate(start)
            within = 1e-6 * max(1.0, reference.network.largest())
            for place, relevance in found.heads.items():
                expected = reference.head_relevance(*place, options.normalise == "neurons")
                assert relevance[row, step].tolist() == pytest.approx(expected, abs=within)
                plain = reference.head_relevance(*place, neurons=False)
                assert found.signed[place][row, step].tolist() == pytest.approx(plain, abs=within)
            at_source, at_prefix = reference.token_relevance()
            for tokens, expected in (
                (found.tokens.source, at_source),
                (found.tokens.prefix, at_prefix),
            ):
                padding = [0.0] * (tokens.shape[-1] - len(expected))
                assert tokens[row, step].tolist() == pytest.approx(expected + padding, abs=within)
            if options.epsilon == 0:
                kept = float(
                    found.tokens.source[row, step].sum() + found.tokens.prefix[row, step].sum()
                )
                assert kept + reference.network.taken_by_bias == pytest.approx(1.0, abs=within)
            taken += reference.network.taken_by_bias
    by_bias = float(found.audit.table()[2].sum())
    assert by_bias == pytest.approx(taken, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("layer_norm", CHOICES["layer_norm"])
@pytest.mark.parametrize("attention", CHOICES["attention"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_the_appendix_neuron_by_neuron(
    norm, layer_norm, attention, rule, tiny, make_batch
):
    model = tiny(norm=norm, encoder_layers=1)
    for bias in CHOICES["bias"]:
        options = exact(LrpOptions(rule, layer_norm, bias, attention, "signed", epsilon=1e-3))
        compare_with_reference(model, options, make_batch(SOURCES, STEPS))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("norm", "bias", "attention"),
    [("pre", "absorb", "constant"), ("pre", "share", "constant"), ("post", "absorb", "softmax")],
)
def test_gated_pruned_and_empty_layers(rule, norm, bias, attention, tiny, make_batch):
    empty = [Head("enc", 1, 0), Head("enc", 1, 1), Head("dec", 1, 0), Head("dec", 1, 1)]
    model = remove_heads(tiny(norm=norm), [*empty, Head("cross", 0, 1), Head("enc", 0, 0)])
    gates = {("cross", 1): torch.tensor([0.7, 0.0]), ("dec", 0): torch.tensor([1.3, 0.4])}
    options = exact(LrpOptions(rule, bias=bias, attention=attention, epsilon=1e-3))
    with gated(model, {place: gate.double() for place, gate in gates.items()}):
        compare_with_reference(model, options, make_batch(SOURCES, STEPS))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", ["pre", "post", "t5 1.1"])
def test_gated_and_removed_units_and_blocks(rule, shape, tiny, make_batch):
    """Relevance of heads, units and blocks, where some have gates and some are gone."""
    settings = {**SHAPES[shape], "ff_block": 2, "head_width": 3}
    full = tiny(**settings)
    gone = ["enc_layers.0.0", "enc_layers.1.1", "dec_layers.0.1", "dec_ff.0.0", "dec.1.0"]
    gone += [f"enc_ff.0.{i}" for i in full.heads.layers["enc_ff"][0]]  # only its bias is left
    model = remove_heads(full, map(Head.parse, gone))
    gates = {("dec_ff", 0): [0.5, 0.0, 2.0], ("dec_layers", 1): [0.6, 1.5, 0.0],
             ("enc_layers", 1): [1.4], ("dec_layers", 0): [0.8, 0.3]}  # fmt: skip
    wanted = {p: len(model.heads.layers[p[0]][p[1]]) for p in gates}
    values = {p: torch.tensor(g).double()[: wanted[p]] for p, g in gates.items()}
    options = exact(LrpOptions(rule, epsilon=1e-3))
    with gated(model, values):
        compare_with_reference(model, options, make_batch(SOURCES, STEPS))


def test_blocks_share_what_arrives_at_their_sum(tiny, make_batch):
    """Conservation: what a network's output gets is that of its units and of its bias."""
    model = tiny(ff_block=3, biases=False, norm_kind="rms", positions="none")
    batch = make_batch(SOURCES, STEPS)
    found = propagate(model, LrpOptions(epsilon=0.0), batch)
    for layer in range(2):
        for stack, place in (("enc", 1), ("dec", 2)):
            units = found.signed[f"{stack}_ff", layer].sum(-1)
            block = found.signed[f"{stack}_layers", layer][..., place]
            torch.testing.assert_close(units, block)
        heads = found.signed["dec", layer].sum(-1)
        torch.testing.assert_close(heads, found.signed["dec_layers", layer][..., 0])


@pytest.mark.parametrize("rule", RULES)
def test_other_activations_and_tied_output(rule, tiny, make_batch):
    model = tiny(activation="gelu", tie="target", output_bias=False, decoder_layers=1)
    options = exact(LrpOptions(rule, normalise="neurons", epsilon=1e-3))
    compare_with_reference(model, options, make_batch(SOURCES, STEPS))


@pytest.mark.parametrize("shape", ["bart", "t5", "t5 1.1"])
@pytest.mark.parametrize("attention", CHOICES["attention"])
@pytest.mark.parametrize("rule", RULES)
def test_models_of_other_families(rule, attention, shape, tiny, make_batch):
    """RMS norm, position biases, unscaled scores, gated networks, no biases, normed embeddings."""
    model = tiny(**{**SHAPES[shape], "head_width": 3, "encoder_layers": 1})
    options = exact(LrpOptions(rule, attention=attention, epsilon=1e-3))
    compare_with_reference(model, options, make_batch(SOURCES, STEPS))


ENCODERS = {
    "masked": {"output_network": True, "activation": "gelu"},
    "classes": {"classes": ("yes", "no", "maybe")},
    "classes, relu, pre-norm": {"classes": ("a", "b"), "class_activation": "relu", "norm": "pre"},
}


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("attention", CHOICES["attention"])
@pytest.mark.parametrize("rule", RULES)
def test_encoders_alone(rule, attention, kind, tiny, make_batch):
    """From the hidden positions of masked sentences, in any order, or from the class."""
    settings = {"decoder_layers": 0, "tie": "all", "norm": "post", "embedding_norm": True}
    model = tiny(**(settings | ENCODERS[kind]))
    options = exact(LrpOptions(rule, attention=attention, epsilon=1e-3))
    lengths = [4, 3]
    source, _ = make_batch(lengths, lengths)
    places = [[2, 0], [1, 0]] if kind == "masked" else [[0], [0]]
    counts = [2, 1] if kind == "masked" else [1, 1]
    propagation = Propagation(model, options, memory=300)
    recording = propagation.record(source, source)
    found = propagation.propagate(recording, counts, tokens=True, positions=torch.tensor(places))
    taken = 0.0
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        reference = ReferenceModel(model, options)
        logits = reference.run(source[row, :length].tolist(), [])
        expected = model(source[row : row + 1, :length], source)[0].amax(-1).tolist()
        assert [n.value for n in logits] == pytest.approx(expected)
        for step, place in enumerate(places[row][:count]):
            reference.network.propagate(logits[place])
            within = 1e-6 * max(1.0, reference.network.largest())
            for at, relevance in found.heads.items():
                heads = reference.head_relevance(*at, neurons=options.normalise == "neurons")
                assert relevance[row, step].tolist() == pytest.approx(heads, abs=within)
            tokens = reference.token_relevance()[0] + [0.0] * (source.shape[1] - length)
            assert found.tokens.source[row, step].tolist() == pytest.approx(tokens, abs=within)
            taken += reference.network.taken_by_bias
    assert float(found.audit.table()[2].sum()) == pytest.approx(taken, rel=1e-6, abs=1e-6)
    assert found.tokens.prefix.shape[-1] == 0


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_telescoped_messages_give_what_ratios_give(norm, tiny, make_batch):
    model, batch = tiny(norm=norm), make_batch(SOURCES, STEPS)
    options = LrpOptions(epsilon=0.0)
    telescoped = Propagation(model, options)
    assert isinstance(telescoped.maps, Telescoped)
    recording = telescoped.record(*batch)
    expected = telescoped.propagate(recording, STEPS, tokens=True)
    for kind in (FastRatio, Maps):
        ratios = Propagation(model, options)
        ratios.maps = kind(Ratio(0.0), options)
        found = ratios.propagate(recording, STEPS, tokens=True)
        for place, relevance in found.heads.items():
            torch.testing.assert_close(relevance, expected.heads[place])
        for name, relevance in vars(found.tokens).items():
            torch.testing.assert_close(relevance, vars(expected.tokens)[name])
        torch.testing.assert_close(found.audit.table(), expected.audit.table())


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("rule", RULES)
def test_a_fast_form_gives_what_the_fractions_give(rule, norm, tiny, make_batch):
    """Through a whole model, gates included."""
    model, batch = tiny(norm=norm), make_batch(SOURCES, STEPS)
    for bias in CHOICES["bias"]:
        options = LrpOptions(rule, "linear", bias, epsilon=1e-4)
        fast, slow = Propagation(model, options), Propagation(model, options)
        if isinstance(fast.maps, Telescoped):
            continue  # knows no epsilon: see above
        slow.maps = Maps(RULES[rule](1e-4), options)
        with gated(model, {("enc", 0): torch.tensor([0.6, 0.0]).double()}):
            recording = fast.record(*batch)
            found, expected = (p.propagate(recording, STEPS) for p in (fast, slow))
        for place, relevance in found.heads.items():
            torch.testing.assert_close(relevance, expected.heads[place])
        torch.testing.assert_close(found.audit.table(), expected.audit.table())


@pytest.mark.parametrize("rule", RULES)
def test_the_memory_budget_and_the_batch_change_nothing(rule, tiny, make_batch):
    model, options = tiny(), LrpOptions(rule)
    sources, steps = [4, 3, 5, 2], [6, 5, 2, 1]
    batch = make_batch(sources, steps)
    whole = propagate(model, options, batch, steps)
    for memory in (1, 2000):
        parts = propagate(model, options, batch, steps, memory)
        for place, relevance in parts.heads.items():
            torch.testing.assert_close(relevance, whole.heads[place])
    for row, (length, count) in enumerate(zip(sources, steps, strict=True)):
        alone = (batch[0][row : row + 1, :length], batch[1][row : row + 1, :count])
        single = propagate(model, options, alone, [count])
        for place, relevance in single.heads.items():
            torch.testing.assert_close(relevance[0], whole.heads[place][row, :count])


@pytest.mark.parametrize("rule", RULES)
def test_masked_heads_have_no_relevance_and_the_others_are_as_if_pruned(rule, tiny, make_batch):
    model, batch, options = tiny(ff_block=2), make_batch(SOURCES, STEPS), LrpOptions(rule)
    gone = [Head("enc", 0, 1), Head("dec", 1, 0), Head("cross", 0, 0), Head("cross", 0, 1)]
    gone += [Head("enc_ff", 0, 1), Head("dec_ff", 1, 2)]
    pruned = propagate(remove_heads(model, gone), options, batch)
    with masked(model, gone):
        found = propagate(model, options, batch)
    for (site, layer), relevance in found.heads.items():
        own = model.heads.layers[site][layer]
        kept = [place for place, i in enumerate(own) if Head(site, layer, i) not in gone]
        torch.testing.assert_close(relevance[..., kept], pruned.heads[site, layer])
        closed = [i for i in range(2) if i not in kept]
        assert not relevance[..., closed].any()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layer_norm", CHOICES["layer_norm"])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_relevance_is_conserved_but_for_what_biases_take(rule, layer_norm, norm, tiny, make_batch):
    # So many hidden neurons that none of their sums is empty, which would lose its relevance.
    model, batch = tiny(norm=norm, ff_width=24), make_batch(SOURCES, STEPS)
    for bias in CHOICES["bias"]:
        options = LrpOptions(rule, layer_norm, bias, epsilon=0.0)
        audit = propagate(model, options, batch).audit
        rows = audit_rows(audit.names, audit.table(), audit.steps)
        within = 1e-9 * max(row.magnitude for row in rows)
        assert all(row.rest == pytest.approx(0.0, abs=within) for row in rows)
        arrived = sum(row.arrived for row in rows if row.station in ("enc_in", "dec_in"))
        assert arrived + sum(row.bias for row in rows) == pytest.approx(1.0, abs=within)
        if bias == "share":
            assert arrived == pytest.approx(1.0, abs=within)
        if rule != "ratio":  # positive shares of a positive start
            assert all(row.magnitude == pytest.approx(row.arrived) for row in rows)


def test_epsilon_takes_what_the_audit_says(tiny, make_batch):
    model, batch = tiny(), make_batch(SOURCES, STEPS)
    options = LrpOptions("zplus", bias="share", epsilon=0.05)
    audit = propagate(model, options, batch).audit
    rows = audit_rows(audit.names, audit.table(), audit.steps)
    arrived = sum(row.arrived for row in rows if row.station in ("enc_in", "dec_in"))
    assert sum(row.rest for row in rows) == pytest.approx(1 - arrived)
    assert all(row.rest > 0 for row in rows if row.station.startswith(("enc.", "dec.")))


def test_heads_of_the_decoder_need_no_encoder(tiny, make_batch):
    model, batch = tiny(), make_batch(SOURCES, STEPS)
    without = Propagation(model, LrpOptions(), source=False)
    found = without.propagate(without.record(*batch), STEPS)
    whole = propagate(model, LrpOptions(), batch)
    for place in (("dec", 0), ("dec", 1), ("cross", 0), ("cross", 1)):
        torch.testing.assert_close(found.heads[place], whole.heads[place])
    assert not found.heads["enc", 0].any()
    rows = audit_rows(found.audit.names, found.audit.table(), found.audit.steps)
    assert rows[-1].station == "enc_out"
    ends = sum(row.arrived for row in rows if row.station in ("enc_out", "dec_in"))
    assert ends + sum(row.bias for row in rows) == pytest.approx(1.0)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_relevance_of_tokens_is_what_the_audit_says_arrived(rule, norm, tiny, make_batch):
    model, steps = tiny(norm=norm), [6, 5, 2, 1]
    batch = make_batch([4, 3, 5, 2], steps)
    found = propagate(model, LrpOptions(rule), batch, steps, memory=2000, tokens=True)
    rows = {r.station: r for r in audit_rows(found.audit.names, found.audit.table(), sum(steps))}
    for tokens, station in ((found.tokens.source, "enc_in"), (found.tokens.prefix, "dec_in")):
        assert float(tokens.sum()) / sum(steps) == pytest.approx(rows[station].arrived)
    for row, count in enumerate(steps):
        assert not found.tokens.prefix[row].triu(1).any()  # nothing later than the step itself
        assert not found.tokens.source[row, count:].any()
    rest = sum(row.bias + row.rest for row in rows.values())
    kept = float(found.tokens.source.sum() + found.tokens.prefix.sum()) / sum(steps)
    assert kept + rest == pytest.approx(1.0)


def test_tokens_of_models_without_some_attention(tiny, make_batch):
    """Without self-attention a step's own token alone; without cross-attention no source."""
    model, batch = tiny(), make_batch(SOURCES, STEPS)
    gone = model.heads.heads(["dec"])
    prefix = propagate(remove_heads(model, gone), LrpOptions(), batch, tokens=True).tokens.prefix
    own = torch.diag_embed(prefix.diagonal(0, 1, 2))
    torch.testing.assert_close(prefix, own)
    assert own.any()
    gone = model.heads.heads(["cross"])
    source = propagate(remove_heads(model, gone), LrpOptions(), batch, tokens=True).tokens.source
    assert not source.any()


def test_tokens_are_kept_only_where_asked_for(tiny, make_batch):
    model, batch = tiny(), make_batch(SOURCES, STEPS)
    assert propagate(model, LrpOptions(), batch).tokens is None
    without = Propagation(model, LrpOptions(), source=False)
    with pytest.raises(ValueError, match="through the encoder"):
        without.propagate(without.record(*batch), STEPS, tokens=True)


def test_later_steps_alone(tiny, make_batch):
    propagation = Propagation(tiny(), LrpOptions("zplus"))
    recording = propagation.record(*make_batch(SOURCES, [4, 2]))
    whole, late = (propagation.propagate(recording, [4, 2], first) for first in (0, 2))
    for place, relevance in late.heads.items():
        torch.testing.assert_close(relevance[:, 2:], whole.heads[place][:, 2:])
        assert not relevance[:, :2].any()
    assert late.audit.steps == 2


def test_one_forward_pass_whatever_the_number_of_steps(tiny, make_batch, monkeypatch):
    model = tiny()
    calls = []
    for name in ("encode", "decode"):
        method = getattr(model, name)
        monkeypatch.setattr(
            model, name, lambda *a, _name=name, _method=method: calls.append(_name) or _method(*a)
        )
    propagate(model, LrpOptions(), make_batch([4] * 3, [9, 8, 7]), [9, 8, 7], memory=1)
    assert calls == ["encode", "decode"]


def test_float32_is_close_to_float64(tiny, make_batch):
    batch, steps = make_batch([6] * 4, [8, 8, 7, 5]), [8, 8, 7, 5]
    for rule in RULES:
        double = propagate(tiny(width=16, ff_width=32), LrpOptions(rule), batch, steps)
        single = propagate(tiny(width=16, ff_width=32).float(), LrpOptions(rule), batch, steps)
        for place, relevance in single.heads.items():
            torch.testing.assert_close(
                relevance.double(), double.heads[place], atol=1e-4, rtol=1e-3
            )


def test_sentences_must_come_in_order(tiny, make_batch):
    with pytest.raises(ValueError, match="order"):
        propagate(tiny(), LrpOptions(), make_batch([3, 3], [2, 3]), [2, 3])


@given(
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    source=st.integers(0, 9),
    memory=st.integers(1, 400),
)
def test_starts_are_planned_once_each_within_the_budget(steps, source, memory):
    steps = sorted(steps, reverse=True)
    windows = plan_starts(steps, 1, source, memory)
    for row, count in enumerate(steps):
        covered = [t for w in windows if row < w.rows for t in range(w.first, w.last)]
        assert covered[:count] == list(range(count))
    for window in windows:
        size = window.rows * max(source, window.last) * (window.last - window.first)
        assert size <= memory or window.last == window.first + 1
        assert steps[window.rows - 1] > window.first
