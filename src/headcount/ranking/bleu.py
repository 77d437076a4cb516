"""BLEU points lost without a head: ablation in the currency of translation quality."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.model.decoding import Search
from headcount.model.gating import gated, mask_gates
from headcount.model.transformer import Transformer
from headcount.progress import Progress
from headcount.ranking.sentences import Sentences
from headcount.run import Run
from headcount.scoring import score_lines
from headcount.training.distribution import Workers
from headcount.translation import translate_tokens


def bleu_losses(
    run: Run,
    sentences: Sentences,
    heads: Sequence[Head],
    search: Search,
    workers: Workers,
    progress: Progress,
) -> Tensor:
    """BLEU of the whole model minus BLEU without each head, `[heads]`.

    Every head takes a translation of all sentences; processes share out the heads.
    """

    def bleu() -> float:
        found = translate_tokens(run, sentences.sources, search)
        lines = run.target_tokenizer.decode_batch(best[0].tokens for best in found)
        return score_lines(lines, sentences.reference_lines or []).bleu.value

    full = bleu()
    losses = torch.zeros(len(heads), dtype=torch.float64)
    mine = workers.share(list(enumerate(heads)))
    for done, (place, head) in enumerate(mine):
        progress("BLEU without each head", done, len(mine))
        with gated(run.model, without(run.model, head)):
            losses[place] = full - bleu()
    progress("BLEU without each head", len(mine), len(mine))
    return workers.sum(losses.to(workers.device)).cpu()


def without(model: Transformer, head: Head) -> dict[tuple[str, int], Tensor]:
    """The gates that the model has now, with one head closed."""
    gates = mask_gates(model, [head])
    for place, mask in gates.items():
        gate = model.attentions()[place].gate
        gates[place] = mask if gate is None else mask * gate.detach()
    return gates
