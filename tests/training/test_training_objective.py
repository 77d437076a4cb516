"""The loss against torch's own label smoothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.data.batches import Batch
from headcount.model.transformer import Transformer
from headcount.training.objective import batch_losses


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
