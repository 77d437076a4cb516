"""Ablation and gradient against one head, one sentence at a time."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from headcount.heads import ALL_SITES, Head
from headcount.model.gating import gated, mask_gates, remove_heads
from headcount.ranking import ablation as module
from headcount.ranking.ablation import ablation
from headcount.ranking.evidence import attentions_of
from headcount.ranking.measures import gradient


@pytest.fixture
def pairs(make_batch):
    """Sources, decoder inputs and labels of three sentences."""
    source, prefix = make_batch([4, 5, 2], [5, 3, 2])
    labels = torch.zeros_like(prefix)
    for row, count in enumerate([5, 3, 2]):
        labels[row, : count - 1] = prefix[row, 1:count]
        labels[row, count - 1] = 3
    return source, prefix, labels


def loss(model, source, prefix, labels) -> float:
    """Of one sentence, without padding."""
    real = labels != 0
    logits = model(source[source != 0][None], prefix[real][None])[0]
    return F.cross_entropy(logits, labels[real], reduction="sum")


@pytest.mark.parametrize("tokens", [1, 40, 10**6])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_head_alone_in_every_sentence(tiny, pairs, tokens, norm, monkeypatch):
    monkeypatch.setattr(module, "PASS_TOKENS", tokens)
    gone = ["enc.1.0", "dec.0.0", "dec.0.1", "enc_ff.0.1", "enc_layers.1.1", "dec_layers.1.0"]
    model = remove_heads(tiny(norm=norm, ff_block=2), map(Head.parse, gone))
    heads = model.head_list(ALL_SITES)
    gates = {("cross", 0): torch.tensor([0.5, 1.5]).double()}
    with torch.no_grad(), gated(model, gates):
        found = ablation(model, *pairs, heads)
        for row in range(3):
            sentence = [part[row] for part in pairs]
            full = loss(model, *sentence)
            for column, head in enumerate(heads):
                closed = mask_gates(model, [head])
                if ("cross", 0) in closed:
                    closed["cross", 0] = closed["cross", 0] * gates["cross", 0]
                with gated(model, closed):
                    rise = loss(model, *sentence) - full
                torch.testing.assert_close(float(found[row, column]), float(rise))


def test_gates_and_recording_are_as_before(tiny, pairs):
    model = tiny()
    ablation(model, *pairs, model.head_list())
    gradient(model, *pairs, attentions_of(model, ALL_SITES))
    assert all(attention.gate is None for attention in model.attentions().values())
    assert model.tape.recording is None
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("gate", [None, 0.6])
def test_gradient_of_every_sentence_by_finite_differences(tiny, pairs, gate):
    model = remove_heads(tiny(activation="gelu", ff_block=2), [Head("enc", 0, 1)])
    places = attentions_of(model, ALL_SITES)
    numbers = {(site, layer): len(model.heads.layers[site][layer]) for site, layer in places}
    base = {
        place: torch.full((n,), 1.0 if gate is None else gate, dtype=torch.float64)
        for place, n in numbers.items()
    }
    with gated(model, {} if gate is None else base):
        found = gradient(model, *pairs, places)
    step, column = 1e-6, 0
    for place in places:
        for index in range(numbers[place]):
            for row in range(3):
                sentence = [part[row] for part in pairs]
                ends = []
                for sign in (1, -1):
                    gates = {p: g.clone() for p, g in base.items()}
                    gates[place][index] += sign * step
                    with torch.no_grad(), gated(model, gates):
                        ends.append(float(loss(model, *sentence)))
                slope = abs(ends[0] - ends[1]) / (2 * step)
                assert float(found[row, column]) == pytest.approx(slope, rel=1e-5, abs=1e-7)
            column += 1


class _Sizes(TorchDispatchMode):
    """Collects the shapes of all tensors that are computed, views of others left out."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not operation.is_view:
            self.shapes.add(tuple(result.shape))
        return result


def test_gradient_makes_nothing_as_large_as_the_embeddings(tiny, pairs):
    """The loss has a gradient for the output weights too, a second copy of a large matrix."""
    model = tiny()
    largest = tuple(model.output_weight.shape)
    with _Sizes() as work:
        gradient(model, *pairs, attentions_of(model, ALL_SITES))
    assert largest not in work.shapes
    assert (int((pairs[2] != 0).sum()), largest[0]) in work.shapes  # the logits were seen
