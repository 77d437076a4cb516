"""Compare a CTranslate2 model with its run: the engine itself loads and runs it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.data.batches import padded
from headcount.errors import UserError
from headcount.interop.checking import largest_difference
from headcount.interop.ctranslate2_export import banned_tokens
from headcount.interop.plain_tokenizers import token_names
from headcount.model.decoding import Search
from headcount.run import Run
from headcount.translation import translate_tokens

LIMIT = 1e-4
"""How far the log-probabilities of tokens may be apart in float32."""

ROUNDED_LIMIT = 0.5
"""How far they may be apart, in the mean, where weights are rounded to fewer bits."""

TIES = 100
"""One of this many translations may differ where two tokens are equally probable to five digits."""

_LONGEST = 48


def open_translator(folder: Path) -> Any:
    """The engine with a model, on the CPU, with as many threads as torch has."""
    import ctranslate2

    ctranslate2.set_log_level(logging.ERROR)  # it warns of types that this machine has to convert
    return ctranslate2.Translator(str(folder), device="cpu", intra_threads=torch.get_num_threads())


class Comparison:
    """The engine's translations and probabilities beside the run's."""

    def __init__(self, run: Run, sources: Sequence[Sequence[int]]) -> None:
        """`sources` are sentences without EOS. The run translates them, greedily, now."""
        self.run = run
        self.sources = [list(source) for source in sources]
        self.limit = min(_LONGEST, run.config.model.max_positions - 1)
        search = Search(
            beam=1, max_ratio=0, max_extra=self.limit, forbidden=tuple(banned_tokens(run))
        )
        translations = translate_tokens(run, self.sources, search)
        self.greedy = [best[0].tokens for best in translations]
        self.shift = 0.0

    def log_probabilities(self, folder: Path) -> tuple[Tensor, Tensor]:
        """Of every token of the run's translations, EOS included: the run's and the engine's.

        The engine never writes the tokens that are banned, and the others share their probability;
        the run's values here are adjusted in the same way. `shift` is the largest difference that
        this makes to the run as it is.
        """
        engine = open_translator(folder)
        names = token_names(self.run)
        scored = engine.score_batch(
            [[names[0][token] for token in source] for source in self.sources],
            [[names[1][token] for token in target] for target in self.greedy],
            max_input_length=0,
        )
        theirs = [value for result in scored for value in result.log_probs]
        plain, gained = self._own_log_probabilities()
        self.shift = float(gained.max())
        return plain + gained, torch.tensor(theirs)

    def same_translations(self, folder: Path) -> int:
        """How many greedy translations are the same, token for token."""
        engine = open_translator(folder)
        names = token_names(self.run)
        first = [names[1][token] for token in self.run.config.model.first_tokens]
        results = engine.translate_batch(
            [[names[0][token] for token in source] for source in self.sources],
            target_prefix=[first] * len(self.sources) if first else None,
            beam_size=1,
            min_decoding_length=0,  # the engine's default is 1: no empty translations
            max_decoding_length=self.limit,
            max_input_length=0,
        )
        expected = [[names[1][token] for token in target] for target in self.greedy]
        return sum(
            result.hypotheses[0] == target for result, target in zip(results, expected, strict=True)
        )

    @torch.inference_mode()
    def _own_log_probabilities(self) -> tuple[Tensor, Tensor]:
        """The run's log-probability of every token, and its gain without banned ones;
        `[tokens]`."""
        model, ids = self.run.model, self.run.target_tokenizer
        rows = [[*source, self.run.source_tokenizer.eos] for source in self.sources]
        inputs = padded([[ids.start, *target] for target in self.greedy], ids.pad)
        logits = model(padded(rows, model.pad), inputs)
        all_tokens = F.log_softmax(logits, -1)
        banned = torch.tensor(banned_tokens(self.run))
        # Minus the log of what all others have together, [sentences, target].
        gains = -all_tokens.index_fill(-1, banned, -torch.inf).logsumexp(-1)
        chosen, gained = [], []
        for row, gain, target in zip(all_tokens, gains, self.greedy, strict=True):
            labels = torch.tensor([*target, ids.eos])
            chosen.append(row[: len(labels)].gather(1, labels[:, None])[:, 0])
            gained.append(gain[: len(labels)])
        return torch.cat(chosen), torch.cat(gained)


def check_ctranslate2(comparison: Comparison, folder: Path, precision: str) -> float:
    """Load the written model and compare: exact in float32, close where weights are rounded.

    Gives the largest difference of log-probabilities, or the mean one for rounded weights.
    """
    ours, theirs = comparison.log_probabilities(folder)
    if precision == "float32":
        limit = LIMIT
        difference = largest_difference(ours, theirs, limit, "CTranslate2 model")
        count = len(comparison.sources)
        other = count - comparison.same_translations(folder)
        if other > count // TIES:
            raise UserError(
                f"The CTranslate2 model translates {other} of {count} sentences otherwise."
                " Nothing was written.",
                "Please report this with the run's config.yaml.",
            )
        return difference
    mean = (ours - theirs).abs().mean().reshape(1)
    return largest_difference(mean, torch.zeros(1), ROUNDED_LIMIT, f"{precision} model")
