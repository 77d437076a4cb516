"""How sure a head is of where it looks (Sec. 4).

"The average of its maximum attention weight excluding the end of sentence symbol": neither EOS nor
START is a real token. In cross-attention the query that writes a token counts as that token, so
that the one that writes EOS is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.model.attention_statistics import confidence_sums, largest_weights
from headcount.model.recording import Recording
from headcount.ranking.evidence import Place


def confidence(
    recording: Recording,
    source: Tensor,
    tokens: Sequence[int],
    attentions: Sequence[Place],
    eos: int,
    frame: tuple[int, int, int] = (0, 0, 0),
) -> tuple[Tensor, Tensor]:
    """Sums of largest weights over the query tokens of each sentence, and their number.

    `source` `[batch, source]` ends in EOS and padding; `tokens` are the target tokens of each
    sentence, without START and EOS. `frame`: how many tokens at the front and at the end of the
    source, and at the front of the target, are not text (language codes, `[CLS]`) and are left out
    like EOS. Returns `[batch, heads]` twice.
    """
    words = source != eos
    first, last, skipped = frame
    lengths = (source == eos).int().argmax(1) - last  # the first EOS; padding comes after it
    positions = torch.arange(source.shape[1], device=source.device)
    words &= (positions < lengths[:, None]) & (positions >= first)
    count = torch.tensor(list(tokens), device=source.device)[:, None]
    sums, counts = [], []
    for site, layer in attentions:
        weights = recording[site, layer, "weights"]
        queries, keys = words, words
        if site != "enc":
            steps = torch.arange(weights.shape[2] - 1, device=source.device)
            queries = (steps < count) & (steps >= skipped)
            weights = weights[:, :, 1:, 1:] if site == "dec" else weights[:, :, :-1]
            keys = queries if site == "dec" else words
        summed, number = confidence_sums(_largest(weights, keys), queries)
        sums.append(summed)
        counts.append(number[:, None].expand_as(summed))
    return torch.cat(sums, 1), torch.cat(counts, 1)


def _largest(weights: Tensor, keys: Tensor) -> Tensor:
    """`[batch, heads, queries]`; zeros where a batch has no target tokens at all."""
    if not weights.shape[2]:
        return weights.new_zeros(weights.shape[:3])
    return largest_weights(weights, keys)[0]
