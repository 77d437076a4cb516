"""BLEU points lost without a head: ablation measured in translation quality."""

from __future__ import annotations

import torch
from torch import Tensor

from headcount.heads import Head
from headcount.model.gating import gated, mask_gates
from headcount.model.transformer import Transformer
from headcount.ranking.evidence import WholeCorpus
from headcount.scoring import score_lines
from headcount.translation import translate_tokens


def bleu_losses(corpus: WholeCorpus) -> Tensor:
    """BLEU of the whole model minus BLEU without each head, `[heads]`.

    All sentences are translated once per head; processes share the heads.
    """

    run, sentences, workers = corpus.run, corpus.sentences, corpus.workers

    def bleu() -> float:
        beams = translate_tokens(run, sentences.sources, corpus.search)
        lines = run.target_tokenizer.decode_batch(best[0].tokens for best in beams)
        return score_lines(lines, sentences.reference_lines or []).bleu.value

    full = bleu()
    losses = torch.zeros(len(corpus.heads), dtype=torch.float64)
    mine = workers.share(list(enumerate(corpus.heads)))
    for done, (number, head) in enumerate(mine):
        corpus.progress("BLEU without each head", done, len(mine))
        with gated(run.model, without(run.model, head)):
            losses[number] = full - bleu()
    corpus.progress("BLEU without each head", len(mine), len(mine))
    return workers.sum(losses.to(workers.device)).cpu()


def without(model: Transformer, head: Head) -> dict[tuple[str, int], Tensor]:
    """The gates that the model has now, with one head closed."""
    gates = mask_gates(model, [head])
    for place, mask in gates.items():
        gate = model.attentions()[place].gate
        gates[place] = mask if gate is None else mask * gate.detach()
    return gates
