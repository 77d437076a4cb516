"""What the model loses without a head, in nats or in BLEU: the yardstick for every other measure.

Many heads are switched off in one pass, each in its own copy of the sentences, by gates that differ
from row to row. What lies below the head's layer is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from headcount.heads import Head, stack_of
from headcount.model.gating import gated, masked
from headcount.model.recording import record
from headcount.model.transformer import Transformer
from headcount.ranking.evidence import WholeCorpus
from headcount.scoring import score_lines
from headcount.translation import translate_tokens

PASS_TOKENS = 6000
"""Positions in one pass, over all copies."""

LOGIT_ROWS = 1000


def ablation(
    model: Transformer, source: Tensor, target_input: Tensor, labels: Tensor, heads: Sequence[Head]
) -> Tensor:
    """The rise of each sentence's loss without each head alone: `[batch, heads]`.

    Tokens `[batch, source]`, `[batch, target]` twice; the loss is the cross-entropy summed over
    target tokens, EOS counted. Negative where the model does better without the head.
    """
    layers = sorted({_entrance(head) for head in heads})
    rise = torch.zeros(len(source), len(heads), device=source.device, dtype=torch.float64)
    with torch.no_grad():
        with record(model, {"residual", "result"}, {"enc", "dec", "enc_out", "dec_out"}) as passed:
            memory, mask = model.encode(source)
            states = model.decode(target_input, memory, mask)
        full = sentence_losses(model, states, labels)
        for in_decoder, layer in layers:
            indices = [i for i, h in enumerate(heads) if _entrance(h) == (in_decoder, layer)]
            positions = target_input.numel() + (0 if in_decoder else source.numel())
            size = max(1, PASS_TOKENS // positions)
            entering = passed["dec" if in_decoder else "enc", layer, "residual"]
            for first in range(0, len(indices), size):
                chosen = indices[first : first + size]
                copies = _Copies(model, [heads[i] for i in chosen], len(source))
                memories = copies.of(memory) if in_decoder else None
                states = copies.states(entering, layer, target_input, memories, mask)
                losses = sentence_losses(model, states, labels.repeat(len(chosen), 1))
                rise[:, chosen] = (losses.view(len(chosen), -1) - full).T
    return rise


def _entrance(head: Head) -> tuple[bool, int]:
    """Whether a head is in the decoder, and its layer: nothing changes below."""
    return stack_of(head.site) == "dec", head.layer


class _Copies:
    """A copy of a batch for each of some heads, in which that head is off."""

    def __init__(self, model: Transformer, heads: Sequence[Head], batch: int) -> None:
        self.model, self.heads, self.batch = model, heads, batch
        gateables = model.gateables()
        self.gates: dict[tuple[str, int], Tensor] = {}
        for number, head in enumerate(heads):
            place, own = (head.site, head.layer), model.heads.layers[head.site][head.layer]
            if place not in self.gates:
                self.gates[place] = self._open(gateables[place].gate, len(own))
            rows = slice(number * batch, (number + 1) * batch)
            self.gates[place][rows, own.index(head.index)] = 0.0

    def _open(self, gate: Tensor | None, heads: int) -> Tensor:
        """The gates that the model has now, or ones, `[copies * batch, heads]`."""
        device = self.model.output_weight.device
        gate = torch.ones(heads, device=device) if gate is None else gate.detach()
        if gate.dim() == 2:
            return gate.repeat(len(self.heads), 1)
        return gate.expand(len(self.heads) * self.batch, -1).clone()

    def of(self, x: Tensor) -> Tensor:
        """`[batch, ...]` to `[copies * batch, ...]`."""
        return x.repeat(len(self.heads), *[1] * (x.dim() - 1))

    def states(
        self,
        entering: Tensor,
        layer: int,
        target_input: Tensor,
        memory: Tensor | None,
        mask: Tensor | None,
    ) -> Tensor:
        """Decoder states of all copies from what enters the first layer with gates.

        `memory` is None where that layer is the encoder's.
        """
        model = self.model
        x = self.of(entering)
        mask = None if mask is None else self.of(mask)
        with gated(model, self.gates):
            if memory is None:
                for encoder_layer in model.encoder_layers()[layer:]:
                    x = encoder_layer(x, mask)
                return model.decode(self.of(target_input), model.encoder_norm(x), mask)
            for decoder_layer in model.decoder_layers()[layer:]:
                x = decoder_layer(x, memory, mask)
            states: Tensor = model.decoder_norm(x)
            return states


def sentence_losses(model: Transformer, states: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the target tokens of each sentence, `[batch]`, float64."""
    real = labels != model.target_pad
    exact = torch.promote_types(states.dtype, torch.float32)
    losses = [
        F.cross_entropy(model.logits(part).to(exact), wanted, reduction="none")
        for part, wanted in zip(
            states[real].split(LOGIT_ROWS), labels[real].split(LOGIT_ROWS), strict=True
        )
    ]
    total = torch.zeros(labels.shape, dtype=torch.float64, device=labels.device)
    total[real] = torch.cat(losses).double()
    return total.sum(1)


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
        with masked(run.model, [head]):
            losses[number] = full - bleu()
    corpus.progress("BLEU without each head", len(mine), len(mine))
    return workers.sum(losses.to(workers.device)).cpu()
