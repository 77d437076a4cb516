"""Multi-head attention that knows its heads (Sec. 2).

What attention weights say about a head (confidence, offsets) is counted here too: training, ranking
and roles share one definition of each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headcount.config import ModelConfig
from headcount.model.embedding import RelativePositions
from headcount.model.primitives import add_bias
from headcount.model.recording import Tape

KeysValues = tuple[Tensor, Tensor]


class Attention(nn.Module):
    """One attention site of one layer with its own, possibly empty, list of heads.

    The projections of all heads to queries, keys and values are stacked in one matrix, so that
    self-attention is a single matrix product: rows `[0, inner)` give queries, `[inner, 2 inner)`
    keys, `[2 inner, 3 inner)` values, where `inner = heads * head_width`, heads in order.
    """

    in_bias: Tensor
    out_bias: Tensor

    def __init__(
        self,
        site: str,
        layer: int,
        config: ModelConfig,
        heads: Sequence[int],
        tape: Tape,
        relative: RelativePositions | None = None,
        removed: bool = False,
    ) -> None:
        """`relative` are the position biases of the scores, which belong to the whole stack.

        An attention that was removed with its block has no heads and no biases.
        """
        super().__init__()
        self.site, self.layer = site, layer
        self.heads = tuple(heads)
        self.head_width = config.head_width_at(site)
        self.scale = self.head_width**-0.5 if config.scale_scores else 1.0
        self.dropout = config.attention_dropout
        self.tape = tape
        self.gate: Tensor | None = None
        self._relative = (relative,)  # in a tuple: its table is not a parameter of this layer
        self.inner = len(self.heads) * self.head_width
        self.in_weight = nn.Parameter(torch.empty(3 * self.inner, config.width))
        biases = config.biases and not removed
        add_bias(self, "in_bias", 3 * self.inner, biases)
        self.out_weight = nn.Parameter(torch.empty(config.width, self.inner))
        add_bias(self, "out_bias", config.width, biases)
        if self.heads:
            for part in self.in_weight.chunk(3):
                nn.init.xavier_uniform_(part)
            nn.init.xavier_uniform_(self.out_weight)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """Attend from `x` `[batch, queries, width]` to itself or to `memory`.

        `mask` is boolean, `[batch, 1, 1, keys]`, true where a key may be seen. A layer without
        heads computes no attention: its output is the constant output bias.
        """
        if not self.heads:
            return self.out_bias.expand(x.shape)
        if memory is not None:
            queries, (keys, values) = self.queries(x), self.keys_values(memory)
        else:
            queries, keys, values = self.queries_keys_values(x)
        return self.attend(queries, keys, values, mask, causal)

    def queries_keys_values(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[batch, length, width]` to all three, `[batch, heads, length, head]` each."""
        queries, keys, values = self._split(F.linear(x, self.in_weight, self.in_bias), 3)
        return queries, keys, values

    def queries(self, x: Tensor) -> Tensor:
        """`[batch, length, width]` to queries `[batch, heads, length, head]`."""
        weight, bias = self.in_weight[: self.inner], self.in_bias[: self.inner]
        return self._split(F.linear(x, weight, bias), 1)[0]

    def keys_values(self, x: Tensor) -> KeysValues:
        """`[batch, length, width]` to keys and values `[batch, heads, length, head]`."""
        weight, bias = self.in_weight[self.inner :], self.in_bias[self.inner :]
        keys, values = self._split(F.linear(x, weight, bias), 2)
        return keys, values

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Scaled dot-product attention of every head, gates, and `W^O`: `[batch, queries, width]`.

        The fused kernel runs unless weights are recorded or edited, or the plain formula is faster;
        then the same quantity is computed step by step.
        """
        dropout = self.dropout if self.training else 0.0
        site, layer, at = self.site, self.layer, self.tape.at
        queries = at(site, layer, "queries", queries)
        keys, values = at(site, layer, "keys", keys), at(site, layer, "values", values)
        bias = self.position_bias(queries.shape[2])
        if bias is not None:
            causal = False  # the position bias is causal itself
            mask = bias if mask is None else bias.masked_fill(~mask, -torch.inf)
        if self.tape.wants(self.site, "weights") or faster_by_steps(queries, bias):
            weights = at(site, layer, "weights", self.weights(queries, keys, mask, causal))
            outputs = (F.dropout(weights, dropout) if dropout else weights) @ values
        else:
            outputs = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                is_causal=causal,
                dropout_p=dropout,
                scale=None if self.scale == self.head_width**-0.5 else self.scale,
            )
        outputs = at(site, layer, "outputs", outputs)
        if self.gate is not None:
            outputs = outputs * self.gate.to(outputs.dtype)[..., None, None]
        batch, _, length, _ = outputs.shape
        merged = outputs.transpose(1, 2).reshape(batch, length, self.inner)
        return F.linear(merged, self.out_weight, self.out_bias)

    def weights(self, queries: Tensor, keys: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        """`softmax(Q K^T / sqrt(d_k))` (Sec. 2), `[batch, heads, queries, keys]`.

        A mask of numbers, which holds position biases, is added to the scores.
        """
        scores: Tensor = queries @ keys.transpose(-1, -2) * self.scale
        if mask is not None and mask.dtype == torch.bool:
            scores = scores.masked_fill(~mask, float("-inf"))
        elif mask is not None:
            scores = scores + mask
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        return scores.softmax(-1)

    @property
    def relative(self) -> RelativePositions | None:
        """The position biases that this attention shares with the others of its stack."""
        return self._relative[0]

    def position_bias(self, length: int) -> Tensor | None:
        """What is added to the scores of `length` queries and keys, `[heads, length, length]`."""
        return None if self.relative is None else self.relative(length, self.heads)

    def _split(self, stacked: Tensor, parts: int) -> tuple[Tensor, ...]:
        """`[batch, length, parts * inner]` to parts of `[batch, heads, length, head]`."""
        apart: Tensor = stacked.unflatten(2, (parts, len(self.heads), self.head_width))
        return apart.permute(2, 0, 3, 1, 4).unbind(0)


def faster_by_steps(queries: Tensor, bias: Tensor | None) -> bool:
    """Whether the plain formula is faster than torch's fused kernel: in training on a CPU.

    In bf16 the kernel's backward pass takes several times as long. Where position biases learn,
    torch has no kernel but a fallback that also handles queries with every key masked, which do not
    occur here. `benchmarks/optimisations.py --recipe recipes/demo-model-decoder.yaml` measures it.
    """
    if queries.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    return queries.dtype == torch.bfloat16 or (bias is not None and bias.requires_grad)


REACH = 5
"""Offsets from -REACH to REACH are counted."""


def largest_weights(weights: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The largest weight to an allowed key, and where it is; weights are not renormalised.

    `weights` `[batch, heads, queries, keys]`, `keys` `[batch, keys]` true where a key counts (EOS
    and padding left out). Returns two tensors `[batch, heads, queries]`.
    """
    allowed = weights.masked_fill(~keys[:, None, None, :], -1.0)
    best = allowed.max(-1)
    return best.values, best.indices


def confidence_sums(largest: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of the largest weights over counted queries, and their number, per sentence (Sec. 4).

    `largest` `[batch, heads, queries]`, `queries` `[batch, queries]`. Returns `[batch, heads]` and
    `[batch]`.
    """
    return (largest * queries[:, None, :]).sum(-1), queries.sum(-1)


def offset_counts(argmax: Tensor, queries: Tensor, reach: int = REACH) -> tuple[Tensor, Tensor]:
    """How often the argmax key stands at each offset from -reach to reach (Sec. 5.1).

    `argmax` `[batch, heads, queries]` are argmax keys, `queries` `[batch, queries]` true for the
    tokens of a sentence, which stand at its front. A query counts for an offset only where that
    offset stays inside the sentence. Returns for each sentence hits `[batch, heads, offsets]` and
    possible `[batch, offsets]`.
    """
    size = queries.sum(-1)  # [batch]
    offsets = torch.arange(-reach, reach + 1, device=argmax.device)
    possible = (size[:, None] - offsets.abs()).clamp(min=0)
    inside = queries[:, None, :] & (argmax >= 0) & (argmax < size[:, None, None])
    position = torch.arange(queries.shape[1], device=argmax.device)
    # Slot 0 and the last one collect misses, so that one pass does for any number of offsets.
    slots = (argmax - position + (reach + 1)).clamp_(0, 2 * reach + 2).masked_fill_(~inside, 0)
    hits = slots.new_zeros((*argmax.shape[:2], 2 * reach + 3))
    hits.scatter_add_(2, slots, slots.new_ones(()).expand_as(slots))
    return hits[..., 1:-1], possible
