"""What an encoder alone is asked: hidden tokens (Devlin et al. 2019, Sec. 3.1), or a class.

Masked-language modelling hides some tokens of a sentence behind the vocabulary's mask token; the
model predicts them from the others. All hidden tokens become the mask, as they are when such a
model is used: BERT's own training leaves or replaces one in five of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headcount.data.batches import Batch
from headcount.data.tokenizer import Tokenizer
from headcount.errors import UserError
from headcount.run import Run

HIDDEN = 0.15
"""The share of a sentence's tokens that are hidden, as in BERT."""

Ask = Callable[[Batch], Batch]
"""From a batch of pairs to what the model reads and has to predict."""


class Masking:
    """Hides tokens: each with a probability of `share`, and at least one of every sentence.

    Tokens that are not text (padding, EOS, `[CLS]`) are never hidden.
    """

    def __init__(self, tokenizer: Tokenizer, share: float = HIDDEN) -> None:
        if tokenizer.mask is None:
            raise ValueError("a vocabulary without a mask token")
        self.mask, self.pad, self.share = tokenizer.mask, tokenizer.pad, share
        frame = {*tokenizer.before, *tokenizer.after}
        self.special = torch.tensor(sorted({self.pad, tokenizer.start, tokenizer.eos, *frame}))

    def hide(self, source: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Sentences with masks, and labels: the hidden tokens, padding everywhere else.

        All `[batch, source]`. `draws` are random numbers from 0 to 1; the token with the smallest
        one is hidden in any case.
        """
        text = ~torch.isin(source, self.special.to(source.device))
        draws = draws.masked_fill(~text, 2.0)
        hidden = (draws < self.share) | (draws == draws.amin(1, keepdim=True))
        hidden &= text
        return source.masked_fill(hidden, self.mask), source.masked_fill(~hidden, self.pad)

    def __call__(self, batch: Batch) -> Batch:
        """A batch whose targets are the hidden tokens of its sources; torch's generator chooses."""
        draws = torch.rand(batch.source.shape, device=batch.source.device)
        source, labels = self.hide(batch.source, draws)
        count = int((labels != self.pad).sum())
        return replace(
            batch, source=source, target_input=source, target_output=labels, target_tokens=count
        )


def draws_of(numbers: Iterable[int], length: int, seed: int) -> Tensor:
    """Random numbers `[sentences, length]` that depend on each sentence's own number only.

    So the same tokens of a sentence are hidden in whichever batch and process it is.
    """
    rows = [np.random.default_rng((seed, number)).random(length) for number in numbers]
    return torch.from_numpy(np.stack(rows))


class Questions:
    """What an encoder alone is asked about sentences when its heads are measured."""

    def __init__(self, run: Run, seed: int) -> None:
        self.model, self.seed = run.model, seed
        masks = run.config.model.output_network and run.source_tokenizer.mask is not None
        self.masking = Masking(run.source_tokenizer) if masks else None

    @torch.no_grad()
    def about(
        self, source: Tensor, numbers: Sequence[int], classes: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """What the model reads, `[batch, source]`, and labels, `[batch, source]` or `[batch, 1]`.

        Labels are `model.target_pad` where nothing is asked. `numbers` are those of the sentences
        in their file: they choose the hidden tokens. A model that classifies is asked for the
        given classes or, without them, for the one that it finds most probable itself.
        """
        if self.masking is not None:
            draws = draws_of(numbers, source.shape[1], self.seed).to(source.device)
            return self.masking.hide(source, draws)
        if classes is not None:
            return source, torch.tensor(classes, device=source.device)[:, None]
        return source, self.model(source, source).argmax(-1)


def asks_of(run: Run) -> Ask | None:
    """How the run's training batches become questions; None where they stay unchanged."""
    config = run.config.model
    if config.decoder_layers:
        return None
    if not config.output_network or run.source_tokenizer.mask is None:
        raise UserError(
            f"{run.folder} is an encoder without a masked-language head: there is nothing to train"
            " it for.",
            "Import a checkpoint that has one (its config.json names a class ...ForMaskedLM).",
        )
    return Masking(run.source_tokenizer)
