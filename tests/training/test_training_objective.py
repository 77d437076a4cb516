"""The loss against torch's own label smoothing, and the price of doubt against loops."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.data.batches import Batch
from headcount.heads import Head
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.training.objective import Objective, batch_losses


def make_batch() -> Batch:
    source = torch.tensor([[5, 6, 7, 3], [8, 3, 0, 0]])
    target_output = torch.tensor([[9, 4, 3], [5, 3, 0]])
    target_input = torch.tensor([[2, 9, 4], [2, 5, 0]])
    return Batch(source, target_input, target_output, torch.arange(2).numpy(), 6, 5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.4])
@pytest.mark.parametrize(("tie", "bias"), [("target", False), ("none", True)])
def test_equals_torch_with_gradients(smoothing: float, tie: str, bias: bool) -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        layers=1, heads=2, width=8, ff_width=16, tie=tie, output_bias=bias, dropout=0
    )
    model = Transformer(config, 10, 12).double()
    if model.output_bias is not None:
        torch.nn.init.normal_(model.output_bias)
    batch = make_batch()

    losses = batch_losses(model, batch, smoothing)
    losses.smoothed.backward()
    ours = [p.grad.clone() for p in model.parameters() if p.grad is not None]

    model.zero_grad()
    logits = model(batch.source, batch.target_input).flatten(0, 1)
    labels = batch.target_output.flatten()
    expected = F.cross_entropy(
        logits, labels, ignore_index=0, reduction="sum", label_smoothing=smoothing
    )
    expected.backward()
    theirs = [p.grad for p in model.parameters() if p.grad is not None]

    assert losses.smoothed.item() == pytest.approx(expected.item(), rel=1e-9)
    plain = F.cross_entropy(logits, labels, ignore_index=0, reduction="sum")
    assert losses.nll.item() == pytest.approx(plain.item(), rel=1e-9)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)


def test_heads_pay_for_each_source_token_that_they_are_in_doubt_about() -> None:
    """Padding pays nothing, and heads of all layers share the price."""
    torch.manual_seed(0)
    config = ModelConfig(layers=3, heads=2, width=8, ff_width=16, dropout=0)
    kept = [Head("enc", 0, 0), Head("enc", 0, 1), Head("enc", 1, 1)]
    layout = Transformer(config, 10, 12).heads.keeping(kept, ["enc"])
    model = Transformer(config, 10, 12, heads=layout).double()
    batch = make_batch()
    with record(model, ["weights"]) as recording:
        plain = batch_losses(model, batch, 0.1)
    expected = 0.0
    for layer, count in ((0, 2), (1, 1)):
        for sentence, length in enumerate((4, 2)):
            for head in range(count):
                for query in range(length):
                    weights = recording["enc", layer, "weights"][sentence, head, query].tolist()
                    expected += (1 - sum(weight * weight for weight in weights)) / 3

    losses = Objective(model, 0.1, sharpen=0.5).losses(batch)

    assert losses.smoothed.item() == pytest.approx(plain.smoothed.item() + 0.5 * expected, rel=1e-9)
    assert losses.nll.item() == pytest.approx(plain.nll.item(), rel=1e-9)
    losses.smoothed.backward()
    for layer in (0, 1):  # where weights are 0, at padding, too
        gradient = model.get_parameter(f"encoder.{layer}.self_attention.attention.in_weight").grad
        assert gradient is not None
        assert gradient.isfinite().all()


def test_nothing_is_to_be_paid_without_heads() -> None:
    config = ModelConfig(layers=1, heads=2, width=8, ff_width=16, dropout=0)
    layout = Transformer(config, 10, 12).heads.keeping([], ["enc"])
    model = Transformer(config, 10, 12, heads=layout)
    batch = make_batch()
    expected = batch_losses(model, batch, 0.0).smoothed
    assert Objective(model, 0.0, sharpen=0.5).losses(batch).smoothed.item() == expected.item()
