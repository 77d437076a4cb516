"""The size of what each head, block of units and block adds, against each of them alone."""

from __future__ import annotations

import pytest
import torch

from headcount.heads import ALL_SITES, BLOCKS, SITES, Head
from headcount.model.gating import gated, remove_heads
from headcount.model.recording import record
from headcount.ranking.evidence import attentions_of
from headcount.ranking.measures import MEASURES, activation_sizes


def module_of(model, part: str, layer: int):
    stack = model.encoder if part.startswith("enc") else model.decoder
    names = {"enc": "self_attention", "dec": "self_attention", "cross": "cross_attention"}
    return getattr(stack[layer], names.get(part, "feed_forward"))


@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_what_is_added_by_each_alone(norm, tiny, make_batch):
    """Switch all others of its layer off: the block's output, less its bias, is what it adds."""
    gone = ["enc.1.0", "enc_ff.0.1", "dec_layers.1.0", "enc_layers.1.1"]
    model = remove_heads(tiny(norm=norm, ff_block=2, gated=True), map(Head.parse, gone))
    steps = [4, 2]
    source, prefix = make_batch([5, 3], steps)
    places = attentions_of(model, ALL_SITES)
    gates = {
        ("enc_ff", 0): torch.tensor([0.5, -2.0]).double(),
        ("cross", 0): torch.tensor([0.0, 3]),
    }
    with gated(model, gates), record(model, MEASURES["activation"].records) as recording:
        model(source, prefix)
        sums, counts = activation_sizes(model, recording, source, steps, places)
    column = 0
    for site, layer in places:
        own = model.heads.layers[site][layer]
        for place, index in enumerate(own):
            part = BLOCKS[site][index] if site in BLOCKS else site
            alone = dict(gates)
            if site not in BLOCKS:
                gate = gates.get((site, layer), torch.ones(len(own))).double()
                alone[site, layer] = gate * torch.eye(len(own))[place]
            with gated(model, alone), record(model, ["output"]) as outputs:
                model(source, prefix)
            added = outputs[part, layer, "output"]
            if site not in BLOCKS:
                block = module_of(model, part, layer)
                added = added - (block.attention.out_bias if site in SITES else block.contract.bias)
            for row in range(2):
                length = int((source[row] != 0).sum()) if site.startswith("enc") else steps[row]
                expected = sum(float(v.square().sum().sqrt()) for v in added[row, :length])
                assert float(sums[row, column]) == pytest.approx(expected, rel=1e-9, abs=1e-12)
                assert int(counts[row, column]) == length
            column += 1
    assert column == len(model.head_list(ALL_SITES)) == sums.shape[1]
