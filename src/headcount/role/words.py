"""Attention between words from attention between BPE pieces (Sec. 5.2).

Weight to a word is the sum of the weights to its pieces; weight from a word is the mean of the
weights from its pieces. So every word's row still sums to at most one; the rest is the weight of
EOS, which belongs to no word.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

NO_WORD = -1


def membership(words: Tensor, count: int) -> Tensor:
    """`[batch, length]` words of pieces to `[batch, length, words]`: 1 where a piece is the word's.

    EOS and padding have `NO_WORD` and so an empty row.
    """
    return F.one_hot(words + 1, count + 1)[..., 1:].to(torch.float32)


def word_attention(weights: Tensor, member: Tensor) -> Tensor:
    """`[batch, heads, length, length]` to `[batch, heads, words, words]`.

    `member` is `membership(...)`, `[batch, length, words]`.
    """
    batch, heads, length, _ = weights.shape
    count = member.shape[-1]
    member = member.to(weights.dtype)
    mean = member / member.sum(1, keepdim=True).clamp(min=1)  # over the query's pieces
    rows = weights.transpose(1, 2).reshape(batch, length, heads * length)
    from_words = mean.transpose(1, 2) @ rows  # [batch, words, heads * length]
    to_words = from_words.view(batch, count * heads, length) @ member  # sum over the key's pieces
    return to_words.view(batch, count, heads, count).transpose(1, 2)
