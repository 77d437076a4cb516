"""Physical removal of heads: their rows and columns are cut out of the projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.model.attention import Attention
from headcount.model.blank import blank_model
from headcount.model.gating import Gates
from headcount.model.transformer import Transformer


def remove_heads(model: Transformer, closed: Iterable[Head]) -> Transformer:
    """A new, smaller model without the given heads; the old one is untouched.

    It gives the same logits as the old one with these heads masked. A layer may lose all heads:
    then only its residual path and the constant output bias remain.
    """
    gone = set(closed)
    missing = gone - set(model.head_list())
    if missing:
        raise ValueError(f"no such heads: {sorted(map(str, missing))}")
    layout = model.heads.keeping(set(model.head_list()) - gone)
    smaller = blank_model(
        model.config,
        model.source_embedding.table.num_embeddings,
        model.target_embedding.table.num_embeddings,
        model.pad,
        layout,
        model.target_pad,
    ).to(device=model.output_weight.device, dtype=model.output_weight.dtype)
    state = dict(model.state_dict())
    for (site, layer), attention in model.attentions().items():
        kept = [i for i, h in enumerate(attention.heads) if Head(site, layer, h) not in gone]
        cut = _cut(attention, _prefix(model, attention), kept)
        state.update({name: tensor for name, tensor in cut.items() if name in state})
    smaller.load_state_dict(state)
    return smaller.train(model.training)


def fold_gates(model: Transformer, gates: Gates) -> None:
    """Multiply fixed gates into `W^O` in place, so that the model no longer needs them."""
    attentions: Mapping[tuple[str, int], Attention] = model.attentions()
    with torch.no_grad():
        for place, gate in gates.items():
            attention = attentions[place]
            attention.out_weight.mul_(gate.repeat_interleave(attention.head_width)[None, :])


def _cut(attention: Attention, prefix: str, kept: list[int]) -> dict[str, Tensor]:
    """The parameters of an attention with only the heads at the given places."""
    width = attention.head_width
    device = attention.out_bias.device
    inner = torch.tensor(
        [place * width + neuron for place in kept for neuron in range(width)],
        dtype=torch.long,
        device=device,
    )
    stacked = torch.cat(
        [part * attention.inner + inner for part in range(3)]
    )  # queries, keys, values
    return {
        f"{prefix}in_weight": attention.in_weight.detach()[stacked],
        f"{prefix}in_bias": attention.in_bias.detach()[stacked],
        f"{prefix}out_weight": attention.out_weight.detach()[:, inner],
        f"{prefix}out_bias": attention.out_bias.detach(),
    }


def _prefix(model: Transformer, attention: Attention) -> str:
    for name, module in model.named_modules():
        if module is attention:
            return f"{name}."
    raise ValueError("this attention is not part of the model")
