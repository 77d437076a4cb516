"""Relevance through attention's softmax, where weights are not held constant (App. A.2).

A head's output is a sum over keys of products `weight * value`, a score a sum over neurons of
products `query * key`. Sums share as the rule says, products as the appendix's element-wise product
does: in the way that the sum of their factors would. The softmax is an activation function and is
ignored: what arrives at a weight arrives at its score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.ranking.rule import Rule


def through_softmax(
    rule: Rule, message: Tensor, weights: Tensor, queries: Tensor, keys: Tensor, values: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Relevance at head outputs `[rows, heads, queries, starts, head]` to that of all three.

    `weights` `[rows, heads, queries, keys]`, the others `[rows, heads, length, head]`.
    """
    weight, value = torch.broadcast_tensors(weights[..., None], values[:, :, None])
    # [rows, heads, queries, keys, head] from here on; q, k and s are queries, keys and starts.
    of_output = rule.fractions(weight * value, 3)
    to_weight, to_value = rule.fractions(torch.stack([weight, value]), 0).unbind(0)
    at_values = torch.einsum("bhqkd,bhqsd->bhksd", of_output * to_value, message)
    at_scores = torch.einsum("bhqkd,bhqsd->bhqks", of_output * to_weight, message)
    query, key = torch.broadcast_tensors(queries[:, :, :, None], keys[:, :, None])
    of_score = rule.fractions(query * key * query.shape[-1] ** -0.5, 4)
    to_query, to_key = rule.fractions(torch.stack([query, key]), 0).unbind(0)
    at_queries = torch.einsum("bhqkd,bhqks->bhqsd", of_score * to_query, at_scores)
    at_keys = torch.einsum("bhqkd,bhqks->bhksd", of_score * to_key, at_scores)
    return at_queries, at_keys, at_values
