"""Word attention against the definition, written out in loops."""

from __future__ import annotations

import torch

from headcount.role.alignment import NO_WORD, membership, word_attention


def by_definition(weights: torch.Tensor, words: torch.Tensor, count: int) -> torch.Tensor:
    """Sum over the key's pieces, mean over the query's pieces, word by word."""
    batch, heads, length, _ = weights.shape
    result = torch.zeros(batch, heads, count, count, dtype=weights.dtype)
    for b in range(batch):
        pieces = [[i for i in range(length) if words[b, i] == w] for w in range(count)]
        for h in range(heads):
            for q in range(count):
                for k in range(count):
                    rows = [sum(weights[b, h, i, j].item() for j in pieces[k]) for i in pieces[q]]
                    if rows:
                        result[b, h, q, k] = sum(rows) / len(rows)
    return result


def test_sum_over_keys_and_mean_over_queries() -> None:
    torch.manual_seed(1)
    words = torch.tensor([[0, 0, 1, 2, 2, 2, NO_WORD], [0, 1, 1, 3, 2, NO_WORD, NO_WORD]])
    weights = torch.rand(2, 3, 7, 7, dtype=torch.float64).softmax(-1)
    found = word_attention(weights, membership(words, 4))
    torch.testing.assert_close(found, by_definition(weights, words, 4))


def test_what_a_row_lacks_went_to_eos() -> None:
    weights = torch.tensor([[[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]]]])
    words = torch.tensor([[0, 0, NO_WORD]])
    assert torch.allclose(word_attention(weights, membership(words, 1)), torch.tensor(0.45))


def test_a_sentence_without_words_has_no_attention() -> None:
    words = torch.full((1, 4), NO_WORD)
    found = word_attention(torch.rand(1, 2, 4, 4), membership(words, 3))
    assert found.shape == (1, 2, 3, 3)
    assert not found.any()
