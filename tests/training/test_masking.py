"""Hidden tokens: which ones, how many, and that nothing but their sentence decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headcount.data.batches import Batch, padded
from headcount.data.tokenizer import Tokenizer
from headcount.training.masking import HIDDEN, Masking, draws_of

CLS, SEP, MASK, PAD = 2, 3, 4, 0


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(40))]
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": i,
                "content": words[i],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for i in range(5)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: i for i, word in enumerate(words)},
            "unk_token": "[UNK]",
        },
    }
    return Tokenizer(content, pad=PAD, unk=1, start=CLS, eos=SEP, before=[CLS])


def test_the_mask_is_found_by_its_name(tokenizer: Tokenizer) -> None:
    assert tokenizer.mask == MASK
    assert Tokenizer.from_dict(tokenizer.to_dict()).mask == MASK
    assert tokenizer.inside("w1 [MASK] w2") == [6, MASK, 7]


def test_a_vocabulary_without_a_mask() -> None:
    assert Tokenizer.train(["a b c d e f g"] * 3, 30).mask is None


def test_text_is_hidden_and_nothing_else(tokenizer: Tokenizer) -> None:
    masking = Masking(tokenizer)
    rng = np.random.default_rng(1)
    rows = [[CLS, *rng.integers(5, 45, size), SEP] for size in rng.integers(1, 30, 400)]
    source = padded([[int(t) for t in row] for row in rows], PAD)
    draws = draws_of(range(len(rows)), source.shape[1], seed=1)
    masked, labels = masking.hide(source, draws)
    hidden = masked == MASK
    assert torch.equal(labels[hidden], source[hidden])
    assert (labels[~hidden] == PAD).all()
    assert torch.equal(masked[~hidden], source[~hidden])
    assert hidden.any(1).all()
    text = source >= 5
    assert not (hidden & ~text).any()
    # More than the share, as every sentence has at least one; with long ones close to it.
    long = text.sum(1) >= 20
    assert hidden[long].sum() / text[long].sum() == pytest.approx(HIDDEN, abs=0.02)


def test_only_the_sentence_decides(tokenizer: Tokenizer) -> None:
    """Another batch, another length of padding, another order: the same tokens are hidden."""
    masking = Masking(tokenizer)
    rows = [[CLS, *range(5, 5 + size), SEP] for size in (3, 9, 14)]
    together = padded(rows, PAD)
    _, labels = masking.hide(together, draws_of([7, 8, 9], together.shape[1], seed=1))
    for number, row, expected in zip([7, 8, 9], rows, labels, strict=True):
        alone = torch.tensor([row])
        _, own = masking.hide(alone, draws_of([number], len(row), seed=1))
        assert torch.equal(own[0], expected[: len(row)])
    _, others = masking.hide(together, draws_of([7, 8, 9], together.shape[1], seed=2))
    assert not torch.equal(others, labels)


def test_a_batch_follows_torchs_seed(tokenizer: Tokenizer) -> None:
    masking = Masking(tokenizer)
    source = padded([[CLS, *range(5, 5 + size), SEP] for size in (3, 30)], PAD)
    batch = Batch(source, source, source, np.arange(2), 36, 36)
    asked = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        asked.append(masking(batch))
    assert torch.equal(asked[0].source, asked[1].source)
    assert not torch.equal(asked[0].source, asked[2].source)
    assert asked[0].target_tokens == int((asked[0].target_output != PAD).sum()) > 0
